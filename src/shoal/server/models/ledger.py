"""What was used, when, by whom and at what price: entries that never change, and the intervals that are still open.

Nothing here refers to another table: what was used stays on record after its job or workspace is gone.
"""

from __future__ import annotations

from sqlalchemy import DDL, BigInteger, Index, UniqueConstraint, event
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class _Held:
    """Slots of one node, and who holds them."""

    workspace_id: Mapped[str]
    job_id: Mapped[str]
    job: Mapped[str]
    person: Mapped[str]
    attempt: Mapped[int]
    machine: Mapped[str]
    kind: Mapped[str]
    slots: Mapped[int]
    price: Mapped[int] = mapped_column(BigInteger)
    """Of one slot for an hour, in millionths: what it was when the attempt began."""
    currency: Mapped[str]


class LedgerEntry(_Held, Base):
    __tablename__ = "ledger"
    __table_args__ = (
        UniqueConstraint("attempt_id", "node", "start_ms"),
        Index("ix_ledger_workspace_id_end_ms", "workspace_id", "end_ms"),
        Index("ix_ledger_job_id", "job_id"),
    )
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    previous: Mapped[str]
    """Hash of the entry before."""
    attempt_id: Mapped[str]
    node: Mapped[int]
    start_ms: Mapped[int] = mapped_column(BigInteger)
    end_ms: Mapped[int] = mapped_column(BigInteger)
    slot_ms: Mapped[int] = mapped_column(BigInteger)
    cost: Mapped[int] = mapped_column(BigInteger)
    """In millionths."""
    hash: Mapped[str]


class OpenSpan(_Held, Base):
    """A node that holds its slots. What of it was entered already ends where it starts."""

    __tablename__ = "ledger_open"
    __table_args__ = (Index("ix_ledger_open_job_id", "job_id"),)
    attempt_id: Mapped[str] = mapped_column(primary_key=True)
    node: Mapped[int] = mapped_column(primary_key=True)
    start_ms: Mapped[int | None] = mapped_column(BigInteger)
    """None until its agent's first word."""
    heard_ms: Mapped[int | None] = mapped_column(BigInteger)
    """Its agent's last word."""


class LedgerHead(Base):
    """One row: the last entry, and the ledger's clock as it last stood."""

    __tablename__ = "ledger_head"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    seq: Mapped[int]
    hash: Mapped[str]
    boot_id: Mapped[str]
    boot_ms: Mapped[int] = mapped_column(BigInteger)
    at_ms: Mapped[int] = mapped_column(BigInteger)


for _verb in ("UPDATE", "DELETE"):
    event.listen(
        LedgerEntry.__table__,
        "after_create",
        DDL(  # type: ignore[no-untyped-call]
            f"CREATE TRIGGER ledger_no_{_verb.lower()} BEFORE {_verb} ON ledger "
            "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        ).execute_if(dialect="sqlite"),
    )
