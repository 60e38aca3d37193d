"""The base of every wire schema: unknown fields are refused, times are UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

LEAST_INT, MOST_INT = -(2**63), 2**63 - 1
"""The integers a database column holds."""
Int64 = Annotated[int, Field(ge=LEAST_INT, le=MOST_INT)]
Count64 = Annotated[int, Field(ge=0, le=MOST_INT)]


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid")


class View(BaseModel):
    """What the server answers. Older clients ignore fields they do not know."""

    model_config = ConfigDict(extra="ignore")


def _as_utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


Utc = Annotated[
    datetime,
    AfterValidator(_as_utc),
    PlainSerializer(lambda v: v.isoformat(timespec="milliseconds").replace("+00:00", "Z"), return_type=str),
]


def utcnow() -> datetime:
    return datetime.now(UTC)
