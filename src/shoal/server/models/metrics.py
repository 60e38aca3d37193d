"""What runs tell of themselves: series of points in columns, and media."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class MetricSeries(Base):
    """One metric of one attempt."""

    __tablename__ = "metric_series"
    __table_args__ = (UniqueConstraint("job_id", "attempt", "kind", "name"), {"sqlite_autoincrement": True})
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    kind: Mapped[str]
    """step or eval."""
    name: Mapped[str]
    first_step: Mapped[int]
    """The smallest."""
    last_step: Mapped[int]
    last: Mapped[str]
    """The newest value, as JSON."""


class MetricBlock(Base):
    """A run of a series' points in columns; small ones are merged by and by. What stands beside the body spares reading it."""

    __tablename__ = "metric_blocks"
    __table_args__ = (Index("ix_metric_blocks_read", "series_id", "first"), {"sqlite_autoincrement": True})
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    series_id: Mapped[int] = mapped_column(ForeignKey("metric_series.id", ondelete="CASCADE"))
    first: Mapped[int]
    last: Mapped[int]
    """The batches its points came with, by Job.metrics_cursor."""
    count: Mapped[int]
    step_min: Mapped[int]
    step_max: Mapped[int]
    rising: Mapped[bool]
    """Each step is above the one before."""
    value_min: Mapped[float | None]
    value_max: Mapped[float | None]
    """Of the finite values."""
    body: Mapped[bytes]


class Media(Base):
    """A picture, figure or table; its bytes are in the store."""

    __tablename__ = "media"
    __table_args__ = (UniqueConstraint("job_id", "attempt", "node", "rank", "n"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    node: Mapped[int]
    rank: Mapped[int]
    n: Mapped[int]
    step: Mapped[int]
    at: Mapped[float]
    name: Mapped[str]
    type: Mapped[str]
    mime: Mapped[str]
    file: Mapped[str]
    size: Mapped[int]
    manifest_id: Mapped[str]
