"""The audit log: who did what, when, from where. Entries never change.

Nothing here refers to another table, so entries stay after the person, job or workspace is deleted.
"""

from __future__ import annotations

from sqlalchemy import DDL, BigInteger, Index, event
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base, append_only


class AuditRow(Base):
    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_actor", "actor", "seq"),
        Index("ix_audit_action", "action", "seq"),
        Index("ix_audit_workspace_id", "workspace_id", "seq"),
    )
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    previous: Mapped[str]
    """Hash of the previous entry."""
    at_ms: Mapped[int] = mapped_column(BigInteger)
    actor: Mapped[str]
    key_id: Mapped[str]
    address: Mapped[str]
    request: Mapped[str]
    action: Mapped[str]
    object: Mapped[str]
    object_id: Mapped[str]
    workspace: Mapped[str]
    workspace_id: Mapped[str]
    result: Mapped[str]
    detail: Mapped[str]
    hash: Mapped[str]


class AuditHead(Base):
    """Single row with the number and hash of the last entry: shows that the end of the log was cut off."""

    __tablename__ = "audit_head"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    seq: Mapped[int]
    hash: Mapped[str]


for _statement in append_only("audit", "audit log"):
    event.listen(
        AuditRow.__table__,
        "after_create",
        DDL(_statement).execute_if(dialect="sqlite"),  # type: ignore[no-untyped-call]
    )
