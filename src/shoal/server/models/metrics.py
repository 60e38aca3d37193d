"""Metrics of runs, as series of points in columns; and media."""

from __future__ import annotations

from collections.abc import Collection

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
    """step, eval, or log: read off the output."""
    name: Mapped[str]
    first_step: Mapped[int]
    """The smallest."""
    last_step: Mapped[int]
    last: Mapped[str]
    """Newest value, as JSON."""

    def display_name(self, of_steps: Collection[str]) -> str:
        """Return the name of the metric as users see it. `of_steps`: names of the metrics logged with run.step."""
        return display_name(self.kind, self.name, of_steps)


class MetricBlock(Base):
    """Consecutive points of a series in columns; small blocks are merged. The other columns summarise the body."""

    __tablename__ = "metric_blocks"
    __table_args__ = (Index("ix_metric_blocks_read", "series_id", "first"), {"sqlite_autoincrement": True})
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    series_id: Mapped[int] = mapped_column(ForeignKey("metric_series.id", ondelete="CASCADE"))
    first: Mapped[int]
    last: Mapped[int]
    """First and last batch (Job.metrics_cursor) with which its points arrived."""
    count: Mapped[int]
    step_min: Mapped[int]
    step_max: Mapped[int]
    rising: Mapped[bool]
    """True if each step is larger than the one before."""
    value_min: Mapped[float | None]
    value_max: Mapped[float | None]
    """Smallest and largest finite value."""
    body: Mapped[bytes]


def display_name(kind: str, name: str, of_steps: Collection[str]) -> str:
    """Return the name of a series as users see it. `of_steps`: names of the metrics logged with run.step."""
    return f"{kind}/{name}" if kind != "step" and name in of_steps else name
