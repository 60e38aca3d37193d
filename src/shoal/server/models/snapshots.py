"""Snapshots: saved volumes of leases."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class Snapshot(Base):
    __tablename__ = "snapshots"
    id: Mapped[str] = mapped_column(primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"))
    lease: Mapped[str]
    """Name of the lease, which may be deleted by now."""
    machine: Mapped[str | None]
    manifest_id: Mapped[str]
    size: Mapped[int]
    files: Mapped[int]
    skipped: Mapped[list[str]]
    created_by: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
