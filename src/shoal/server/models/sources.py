"""Code of jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class Source(Base):
    """Code of jobs, as committed to the store."""

    __tablename__ = "sources"
    id: Mapped[str] = mapped_column(primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    manifest_id: Mapped[str]
    size: Mapped[int]
    files: Mapped[int]
    origin: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
