"""Summaries of runs for queries over many jobs, and saved views of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class RunMetric(Base):
    """Summary of one metric of a job over all its attempts, without replaced points; kept for queries over many jobs."""

    __tablename__ = "run_metrics"
    __table_args__ = ({"sqlite_with_rowid": False},)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    last: Mapped[float | None]
    """Newest value; None if it is not a finite number."""
    min: Mapped[float | None]
    max: Mapped[float | None]
    last_step: Mapped[int]
    count: Mapped[int]


class RunsView(Base):
    """Saved query over the runs of a workspace."""

    __tablename__ = "run_views"
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    query: Mapped[dict[str, Any]]
    created_by: Mapped[str]
    created_at: Mapped[datetime]
