"""Jobs, their attempts, nodes, events, and the segments of their streams."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class Job(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("workspace_id", "name"),
        UniqueConstraint("workspace_id", "run_id"),
        # Holds all that a pass over a long queue reads, so that it need not touch the jobs themselves.
        Index("ix_jobs_queue", "state", "id", "priority", "attempts", sqlite_where=text("ended_at IS NULL")),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    name: Mapped[str]
    spec: Mapped[dict[str, Any]]
    source_id: Mapped[str] = mapped_column(ForeignKey("sources.id"))
    inputs: Mapped[list[dict[str, str]]]
    """What to mount, pinned at submission: path, name, manifest_id."""
    created_by: Mapped[str]
    state: Mapped[str]
    priority: Mapped[int]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    stop_requested_at: Mapped[datetime | None]
    stop_reason: Mapped[str | None]
    stop_state: Mapped[str | None]
    """The state a requested stop leads to: stopped, or failed when a limit was hit."""
    exit_code: Mapped[int | None]
    reason: Mapped[str | None]
    progress: Mapped[dict[str, Any] | None]
    attempts: Mapped[int] = mapped_column(default=0)
    restarts_used: Mapped[int] = mapped_column(default=0)
    """Failures since the job last got further than before."""
    best_step: Mapped[int] = mapped_column(default=-1)
    """The furthest step any attempt reached."""
    metrics_cursor: Mapped[int] = mapped_column(default=0)
    """Counts the batches of metrics that have come."""
    run_id: Mapped[str | None]
    """Of a run that was made elsewhere and brought in; None for the jobs that run here."""


class Attempt(Base):
    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("job_id", "number"),
        Index("ix_attempts_open", "state", sqlite_where=text("state != 'ended'")),
        Index("ix_attempts_ended_at", "ended_at"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    number: Mapped[int]
    state: Mapped[str]
    fenced: Mapped[bool] = mapped_column(default=False)
    """Its fate is sealed: workers are to be killed and nothing but what they logged is accepted any more."""
    read_token_hash: Mapped[bytes | None] = mapped_column(index=True)
    """Of the token its workers may read their workspace with."""
    resume: Mapped[dict[str, Any] | None]
    """The checkpoint it starts from (id, manifest_id), chosen when its gang is complete; {} for none."""
    result: Mapped[str | None]
    reason: Mapped[str | None]
    num_nodes: Mapped[int]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]


class Node(Base):
    __tablename__ = "nodes"
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    machine: Mapped[str]
    slots: Mapped[list[int]]
    state: Mapped[str]
    token_hash: Mapped[bytes] = mapped_column(unique=True)
    pid: Mapped[int | None]
    boot_id: Mapped[str | None]
    joined_by: Mapped[bytes | None]
    """Hash of the word only the agent that has joined knows; None for agents of older versions."""
    host: Mapped[str | None]
    address: Mapped[str | None]
    port: Mapped[int | None]
    exit_code: Mapped[int | None]
    failed_rank: Mapped[int | None]
    reason: Mapped[str | None]
    paths: Mapped[str | None]
    ended_at: Mapped[datetime | None]
    final: Mapped[bool] = mapped_column(default=False)
    """Its agent has delivered everything and left."""
    blamed: Mapped[bool] = mapped_column(default=False)
    """It ended by itself, not because it was told to."""


class Event(Base):
    """What happened to a job, in order. The audit of slots and of every move between states."""

    __tablename__ = "events"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    kind: Mapped[str]
    message: Mapped[str]
    attempt: Mapped[int | None]
    data: Mapped[dict[str, Any]]


class StreamHead(Base):
    """How far a node's stream has been stored: the guard that makes delivery exactly-once."""

    __tablename__ = "stream_heads"
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True)
    node: Mapped[int] = mapped_column(primary_key=True)
    stream: Mapped[str] = mapped_column(primary_key=True)
    next_seq: Mapped[int]


class Segment(Base):
    """A run of records of one stream, compressed (zstd of JSON lines)."""

    __tablename__ = "segments"
    __table_args__ = (Index("ix_segments_read", "job_id", "stream", "id"), {"sqlite_autoincrement": True})
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    node: Mapped[int]
    stream: Mapped[str]
    seq_first: Mapped[int]
    count: Mapped[int]
    t_last: Mapped[float]
    body: Mapped[bytes]
