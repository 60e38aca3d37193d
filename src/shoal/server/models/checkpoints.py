"""Checkpoints, and what they can be used for."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class Checkpoint(Base):
    __tablename__ = "checkpoints"
    __table_args__ = (Index("ix_checkpoints_job", "job_id", "id"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"))
    job_name: Mapped[str | None]
    attempt: Mapped[int | None]
    node: Mapped[int | None]
    name: Mapped[str]
    manifest_id: Mapped[str]
    size: Mapped[int]
    files: Mapped[int]
    facts: Mapped[dict[str, Any]]
    kept: Mapped[bool] = mapped_column(default=False)
    damaged: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime]


def holds_state() -> ColumnElement[bool]:
    """Match checkpoints from which a job can resume, because they contain more than logs."""
    only_logs: ColumnElement[bool] = Checkpoint.facts["only_logs"].as_boolean()
    return only_logs.is_not(True)


def is_of_output() -> ColumnElement[bool]:
    """Match checkpoints that the script wrote to the output directory."""
    place: ColumnElement[str] = Checkpoint.facts["place"].as_string()
    return place.is_distinct_from("workdir")
