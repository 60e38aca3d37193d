"""Chunks that a workspace has uploaded."""

from __future__ import annotations

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class WorkspaceChunk(Base):
    """Chunk that a workspace has uploaded itself. Knowing a hash alone does not give access to the bytes."""

    __tablename__ = "workspace_chunks"
    __table_args__ = {"sqlite_with_rowid": False}
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    hash: Mapped[bytes] = mapped_column(primary_key=True)
