"""The ledger: who used how many slots, when and at what price. Entries never change; open spans are not entered yet.

Nothing here refers to another table, so entries stay after their job or workspace is deleted.
"""

from __future__ import annotations

from sqlalchemy import DDL, BigInteger, Index, UniqueConstraint, event
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base, append_only


class _Held:
    """Columns shared by entries and open spans: the slots of one node, and who holds them."""

    workspace_id: Mapped[str]
    job_id: Mapped[str]
    job: Mapped[str]
    person: Mapped[str]
    attempt: Mapped[int]
    machine: Mapped[str]
    kind: Mapped[str]
    slots: Mapped[int]
    price: Mapped[int] = mapped_column(BigInteger)
    """Price of one slot for an hour, in millionths, when the attempt began."""
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
    """Hash of the previous entry."""
    attempt_id: Mapped[str]
    node: Mapped[int]
    start_ms: Mapped[int] = mapped_column(BigInteger)
    end_ms: Mapped[int] = mapped_column(BigInteger)
    slot_ms: Mapped[int] = mapped_column(BigInteger)
    cost: Mapped[int] = mapped_column(BigInteger)
    """Cost in millionths of the currency."""
    hash: Mapped[str]


class OpenSpan(_Held, Base):
    """Time of a node that holds slots and is not in the ledger yet; it starts where the node's last entry ends."""

    __tablename__ = "ledger_open"
    __table_args__ = (Index("ix_ledger_open_job_id", "job_id"),)
    attempt_id: Mapped[str] = mapped_column(primary_key=True)
    node: Mapped[int] = mapped_column(primary_key=True)
    start_ms: Mapped[int | None] = mapped_column(BigInteger)
    """Start in ms; None until the agent's first report."""
    heard_ms: Mapped[int | None] = mapped_column(BigInteger)
    """Time of the agent's last stored report, in ms."""


class LedgerHead(Base):
    """Single row with the last entry and the last stored reading of the ledger's clock."""

    __tablename__ = "ledger_head"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    seq: Mapped[int]
    hash: Mapped[str]
    boot_id: Mapped[str]
    boot_ms: Mapped[int] = mapped_column(BigInteger)
    at_ms: Mapped[int] = mapped_column(BigInteger)


for _statement in append_only("ledger", "ledger"):
    event.listen(
        LedgerEntry.__table__,
        "after_create",
        DDL(_statement).execute_if(dialect="sqlite"),  # type: ignore[no-untyped-call]
    )
