"""What is in the store, and which workspace may see it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class WorkspaceChunk(Base):
    """A chunk this workspace has itself uploaded. Knowing a hash alone gives nobody another's bytes."""

    __tablename__ = "workspace_chunks"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    hash: Mapped[bytes] = mapped_column(primary_key=True)


class Source(Base):
    """Code, as committed to the store."""

    __tablename__ = "sources"
    id: Mapped[str] = mapped_column(primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    manifest_id: Mapped[str]
    size: Mapped[int]
    files: Mapped[int]
    origin: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
