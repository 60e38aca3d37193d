"""Jobs, their attempts, nodes, events, and the segments of their streams."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint, false, text
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class Job(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("workspace_id", "name"),
        UniqueConstraint("workspace_id", "run_id"),
        # Covers all columns that the scheduler reads of a long queue, so that it need not read the rows themselves.
        Index("ix_jobs_queue", "state", "id", "priority", "attempts", sqlite_where=text("ended_at IS NULL")),
        Index("ix_jobs_list", "workspace_id", "kind", "id"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    name: Mapped[str]
    spec: Mapped[dict[str, Any]]
    source_id: Mapped[str] = mapped_column(ForeignKey("sources.id"))
    inputs: Mapped[list[dict[str, str]]]
    """Mounts, fixed at submission: path, name, manifest_id."""
    created_by: Mapped[str]
    state: Mapped[str]
    priority: Mapped[int]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    stop_requested_at: Mapped[datetime | None]
    stop_reason: Mapped[str | None]
    stop_state: Mapped[str | None]
    """State after a requested stop: stopped, failed when a limit was hit, or queued when preempted."""
    exit_code: Mapped[int | None]
    reason: Mapped[str | None]
    progress: Mapped[dict[str, Any] | None]
    attempts: Mapped[int] = mapped_column(default=0)
    restarts_used: Mapped[int] = mapped_column(default=0)
    """Failures since the job last made progress beyond `best_step` or saved a checkpoint."""
    best_step: Mapped[int] = mapped_column(default=-1)
    """Furthest step that any attempt reached."""
    metrics_cursor: Mapped[int] = mapped_column(default=0)
    """Number of batches of metrics that have arrived."""
    run_id: Mapped[str | None]
    """Id of an imported run; None for jobs of this server."""
    kind: Mapped[str] = mapped_column(default="job", server_default="job")
    """job, trial, preflight or lease."""
    params: Mapped[dict[str, Any] | None]
    """Arguments and logged config by name; None until they were read (jobs of older versions)."""
    tags: Mapped[list[str]] = mapped_column(default=list, server_default="[]")
    title: Mapped[str] = mapped_column(default="", server_default="")
    description: Mapped[str] = mapped_column(default="", server_default="")
    note: Mapped[str] = mapped_column(default="", server_default="")
    starred: Mapped[bool] = mapped_column(default=False, server_default=false())
    archived_at: Mapped[datetime | None]


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
    """True once the attempt is given up: its workers must be killed, and only their logs and metrics are still accepted."""
    read_token_hash: Mapped[bytes | None] = mapped_column(index=True)
    """Hash of the token with which its workers may read their workspace."""
    resume: Mapped[dict[str, Any] | None]
    """Checkpoint it starts from (id, manifest_id), chosen when all nodes have joined; {} for none."""
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
    """Hash of a secret of the agent process that joined; None for agents of older versions."""
    host: Mapped[str | None]
    address: Mapped[str | None]
    port: Mapped[int | None]
    exit_code: Mapped[int | None]
    failed_rank: Mapped[int | None]
    reason: Mapped[str | None]
    paths: Mapped[str | None]
    sandbox: Mapped[str | None]
    """Level of the sandbox, with what is missing; None until the workers run, and from agents of older versions."""
    ended_at: Mapped[datetime | None]
    final: Mapped[bool] = mapped_column(default=False)
    """True when its agent has delivered everything and ended."""
    blamed: Mapped[bool] = mapped_column(default=False)
    """True if it failed by itself, not because it was stopped."""


class Event(Base):
    """Event of a job, in order: every change of state, and where its slots were."""

    __tablename__ = "events"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    kind: Mapped[str]
    message: Mapped[str]
    attempt: Mapped[int | None]
    data: Mapped[dict[str, Any]]


class StreamHead(Base):
    """Next sequence number expected of a node's stream; it makes delivery exactly-once."""

    __tablename__ = "stream_heads"
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True)
    node: Mapped[int] = mapped_column(primary_key=True)
    stream: Mapped[str] = mapped_column(primary_key=True)
    next_seq: Mapped[int]


class Segment(Base):
    """Consecutive records of one stream, compressed (zstd of JSON lines)."""

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
