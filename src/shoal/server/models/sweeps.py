"""Sweeps and their trials.

A trial's row and that of its job are written in one transaction, so neither exists without the other.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class Sweep(Base):
    __tablename__ = "sweeps"
    __table_args__ = (
        UniqueConstraint("workspace_id", "name"),
        Index("ix_sweeps_open", "state", sqlite_where=text("ended_at IS NULL")),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    name: Mapped[str]
    spec: Mapped[dict[str, Any]]
    source_id: Mapped[str] = mapped_column(ForeignKey("sources.id"))
    inputs: Mapped[list[dict[str, str]]]
    """Mounts of every trial, fixed when the sweep was created."""
    total: Mapped[int]
    """Maximum number of trials."""
    created_by: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str | None]
    best: Mapped[int | None]
    """Number of the trial with the best result so far."""
    forgiven: Mapped[int] = mapped_column(default=0)
    """Failed trials that no longer count, because a person resumed the sweep after them."""
    revision: Mapped[int] = mapped_column(default=0)
    """Number of changes by people; when it changes the sweeper reads everything again."""
    created_at: Mapped[datetime]
    stop_requested_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]


class Trial(Base):
    __tablename__ = "trials"
    __table_args__ = (
        Index("ix_trials_state", "sweep_id", "state"),
        Index("ix_trials_result", "sweep_id", "result"),
        Index("ix_trials_key", "key"),
        Index("ix_trials_job", "job_id"),
    )
    sweep_id: Mapped[str] = mapped_column(ForeignKey("sweeps.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    params: Mapped[dict[str, Any]]
    key: Mapped[str]
    """Identity of the parameters: trials with the same key are the same."""
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"))
    """Id of the job; None once it was deleted."""
    job_name: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str | None]
    again: Mapped[bool] = mapped_column(default=False)
    """True if the trial has ended and must run again."""
    result: Mapped[float | None]
    reports: Mapped[int] = mapped_column(default=0)
    step: Mapped[int | None]
    curve: Mapped[list[Any]] = mapped_column(JSON)
    """[report, value] of each report that was better than all before it."""
    seconds: Mapped[float | None]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
