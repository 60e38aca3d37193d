"""What is in the store, and which workspace may see it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class WorkspaceChunk(Base):
    """A chunk this workspace has itself uploaded. Knowing a hash alone gives nobody another's bytes."""

    __tablename__ = "workspace_chunks"
    __table_args__ = {"sqlite_with_rowid": False}
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True)
    hash: Mapped[bytes] = mapped_column(primary_key=True)


class Source(Base):
    """Code, as committed to the store."""

    __tablename__ = "sources"
    id: Mapped[str] = mapped_column(primary_key=True)
    workspace_id: Mapped[str] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    manifest_id: Mapped[str]
    size: Mapped[int]
    files: Mapped[int]
    origin: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


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
    """Of a checkpoint: a job can go on from it, for there is more in it than logs."""
    told: ColumnElement[bool] = Checkpoint.facts["only_logs"].as_boolean()
    return told.is_not(True)


def is_of_output() -> ColumnElement[bool]:
    """Match checkpoints that the script wrote to the output directory, where it means to keep them."""
    told: ColumnElement[str] = Checkpoint.facts["place"].as_string()
    return told.is_distinct_from("workdir")
