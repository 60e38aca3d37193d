"""Declarative base and column types of all tables."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, DateTime, MetaData
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

# Named constraints, so that later migrations can drop them.
_NAMING = {
    "ix": "ix_%(column_0_N_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """Moment in time: stored as naive UTC, read as an aware datetime."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        return value.astimezone(UTC).replace(tzinfo=None) if value is not None else None

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None else None


def append_only(table: str, what: str) -> list[str]:
    """Return the statements that make a table with a growing `seq` append-only.

    REPLACE does not fire triggers for the rows that it deletes, so an insert of an existing number is refused by itself.
    """
    refusal = f"BEGIN SELECT RAISE(ABORT, 'the {what} is append-only'); END"
    taken = f"WHEN EXISTS (SELECT 1 FROM {table} WHERE seq = NEW.seq)"  # noqa: S608  constants
    return [
        f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} {refusal}",
        f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {refusal}",
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} {taken} {refusal}",
    ]


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=_NAMING)
    type_annotation_map = {
        datetime: UtcDateTime,
        dict[str, Any]: JSON(none_as_null=True),
        list[int]: JSON,
        list[dict[str, str]]: JSON,
        list[str]: JSON,
    }
