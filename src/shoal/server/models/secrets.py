"""Secrets of workspaces, encrypted."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class Secret(Base):
    __tablename__ = "secrets"
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    sealed: Mapped[bytes]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
