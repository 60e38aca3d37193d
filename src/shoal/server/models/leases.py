"""Leases: who may use which job's machine by SSH, and until when."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class Lease(Base):
    __tablename__ = "leases"
    __table_args__ = (
        # The name of one that has ended can be given again.
        Index("uq_leases_live_name", "workspace_id", "name", unique=True, sqlite_where=text("ended_at IS NULL")),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), unique=True)
    """What holds its slots; gone with it."""
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    name: Mapped[str]
    login: Mapped[str] = mapped_column(unique=True)
    ssh_keys: Mapped[list[str]]
    password_hash: Mapped[str | None]
    host_key: Mapped[bytes]
    """Its own private key, sealed."""
    host_public_key: Mapped[str]
    time_s: Mapped[int]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    """None until it could first be used."""
    ended_at: Mapped[datetime | None]
    end_reason: Mapped[str | None]
    reminded_s: Mapped[int | None]
    """The last reminder: how long was left then."""
