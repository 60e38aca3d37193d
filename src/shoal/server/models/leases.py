"""Leases: machine shares that people rent, their SSH credentials and their time."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class Lease(Base):
    __tablename__ = "leases"
    __table_args__ = (
        # The name of an ended lease can be used again.
        Index("uq_leases_live_name", "workspace_id", "name", unique=True, sqlite_where=text("ended_at IS NULL")),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), unique=True)
    """Job that holds the slots; the lease is deleted with it."""
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    name: Mapped[str]
    login: Mapped[str] = mapped_column(unique=True)
    ssh_keys: Mapped[list[str]]
    password_hash: Mapped[str | None]
    host_key: Mapped[bytes]
    """Private host key, encrypted; the key of the volume is derived from it. Empty once the lease has ended."""
    host_public_key: Mapped[str]
    time_s: Mapped[int]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    """End of the lease; None until it first ran."""
    ended_at: Mapped[datetime | None]
    end_reason: Mapped[str | None]
    reminded_s: Mapped[int | None]
    """Last reminder that was sent, as the seconds that were left."""
