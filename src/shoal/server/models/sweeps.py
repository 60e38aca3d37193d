"""Sweeps and their trials. A trial's row is written together with that of its job, so that neither is there without the other."""

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
    """What every trial mounts, pinned when the sweep was made."""
    total: Mapped[int]
    """Trials there will be at most."""
    created_by: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str | None]
    best: Mapped[int | None]
    """Number of the trial with the best result so far."""
    forgiven: Mapped[int] = mapped_column(default=0)
    """Failed trials that a person has seen and gone on from."""
    revision: Mapped[int] = mapped_column(default=0)
    """Counts what people have changed; the sweeper then reads everything anew."""
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
    """Trials with the same one are the same."""
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"))
    """None once somebody has deleted it."""
    job_name: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str | None]
    again: Mapped[bool] = mapped_column(default=False)
    """It has ended and is to run once more."""
    result: Mapped[float | None]
    reports: Mapped[int] = mapped_column(default=0)
    step: Mapped[int | None]
    curve: Mapped[list[Any]] = mapped_column(JSON)
    """[report, value] of each that was better than all before it."""
    seconds: Mapped[float | None]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
