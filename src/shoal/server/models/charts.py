"""Notes at steps of runs, and layouts of charts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class StepNote(Base):
    """Note of a person at a step of a run."""

    __tablename__ = "step_notes"
    __table_args__ = (Index("ix_step_notes_job", "job_id", "id"), {"sqlite_autoincrement": True})
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    step: Mapped[int]
    text: Mapped[str]
    created_by: Mapped[str]
    created_at: Mapped[datetime]


class ChartLayout(Base):
    """Layout of a page's charts in a workspace."""

    __tablename__ = "chart_layouts"
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    page: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(primary_key=True)
    """Person whose own it is; empty for the one that the workspace shares."""
    layout: Mapped[dict[str, Any]]
    saved_by: Mapped[str]
    saved_at: Mapped[datetime]
