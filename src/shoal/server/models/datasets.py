"""Versions of datasets."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class Dataset(Base):
    """One version of a dataset."""

    __tablename__ = "datasets"
    __table_args__ = (UniqueConstraint("workspace_id", "name", "version"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    name: Mapped[str]
    version: Mapped[int]
    status: Mapped[str]
    manifest_id: Mapped[str | None]
    size: Mapped[int] = mapped_column(default=0)
    files: Mapped[int] = mapped_column(default=0)
    origin: Mapped[dict[str, Any]]
    error: Mapped[str | None]
    created_by: Mapped[str]
    created_at: Mapped[datetime]
    available_at: Mapped[datetime | None]
