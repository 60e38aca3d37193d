"""Git hosts with their tokens, and repositories by name."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class Registry(Base):
    """Git host and its encrypted token."""

    __tablename__ = "registries"
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    host: Mapped[str] = mapped_column(primary_key=True)
    username: Mapped[str]
    sealed: Mapped[bytes]
    created_at: Mapped[datetime]


class GitSource(Base):
    __tablename__ = "git_sources"
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    url: Mapped[str]
    revision: Mapped[str | None]
    created_at: Mapped[datetime]
