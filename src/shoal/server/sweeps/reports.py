"""Reports of trials: values of the metric by which trials are compared, read incrementally from their jobs' metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Row, and_, bindparam, or_, select
from sqlalchemy.orm import Session

from shoal.core.sweeps import Direction
from shoal.server.db import in_parts
from shoal.server.metrics import reads as metric_reads
from shoal.server.models.metrics import MetricBlock, MetricSeries
from shoal.tune.curve import Curve

_OF_TWO_VALUES = 200
"""Maximum number of series in one query: each uses several SQL variables, whose number is limited."""
_SERIES = (
    select(MetricSeries.id, MetricSeries.job_id, MetricSeries.attempt, MetricSeries.kind, MetricSeries.name)
    .where(MetricSeries.job_id.in_(bindparam("jobs", expanding=True)))
    .where(MetricSeries.name.in_(bindparam("names", expanding=True)))
    .order_by(MetricSeries.attempt)
)
_BLOCK = (MetricBlock.series_id, MetricBlock.first, MetricBlock.body)
_Found = Row[*tuple[Any, ...]]


@dataclass(slots=True)
class Reports:
    """Values that one trial has reported so far."""

    direction: Direction
    cursor: int = 0
    """Last batch of its job's metrics that has been read."""
    curve: Curve = field(init=False)
    step: int | None = None
    """Step of the last report."""

    def __post_init__(self) -> None:
        self.curve = Curve(self.direction)

    def read_again(self) -> None:
        self.cursor, self.curve, self.step = 0, Curve(self.direction), None


def update(session: Session, metric: str, wanted: Mapping[str, tuple[Reports, int]]) -> None:
    """Update the reports of these jobs. `wanted`: job id → its reports, and the newest batch of its metrics."""
    chosen = _series(session, metric, wanted)
    for job_id, (reports, _) in wanted.items():
        if len(chosen.get(job_id, ())) > 1:
            reports.read_again()  # a later attempt may have replaced some of them
    blocks = _blocks(session, {s.id: wanted[job_id][0].cursor for job_id, found in chosen.items() for s in found})
    for job_id, (reports, cursor) in wanted.items():
        found = chosen.get(job_id, [])
        if any(s.id in blocks for s in found):
            _add(session, reports, found, blocks)
        reports.cursor = cursor


def _series(session: Session, metric: str, job_ids: Iterable[str]) -> dict[str, list[_Found]]:
    """Return job id → the series of the metric, one per attempt. `eval/loss` also matches the `loss` of an evaluation."""
    names = [("step", metric), ("eval", metric), ("log", metric)]
    if metric.startswith("eval/"):
        names.append(("eval", metric.removeprefix("eval/")))
    elif metric.startswith("log/"):
        names.append(("log", metric.removeprefix("log/")))
    found: dict[str, dict[tuple[str, str], list[_Found]]] = {}
    for ids in in_parts(job_ids):
        for series in session.execute(_SERIES, {"jobs": ids, "names": list({name for _, name in names})}):
            found.setdefault(series.job_id, {}).setdefault((series.kind, series.name), []).append(series)
    return {job_id: next((of_job[name] for name in names if name in of_job), []) for job_id, of_job in found.items()}


def _blocks(session: Session, after: Mapping[int, int]) -> dict[int, list[_Found]]:
    """Return series id → its blocks that contain points newer than the given batch."""
    found: dict[int, list[_Found]] = {}
    for ids in in_parts(after, _OF_TWO_VALUES):
        newer = or_(*(and_(MetricBlock.series_id == i, MetricBlock.last > after[i]) for i in ids))
        order = (MetricBlock.series_id, MetricBlock.first, MetricBlock.id)
        for block in session.execute(select(*_BLOCK).where(newer).order_by(*order)):
            found.setdefault(block.series_id, []).append(block)
    return found


def _add(session: Session, reports: Reports, series: list[_Found], blocks: dict[int, list[_Found]]) -> None:
    from shoal.server.metrics.columns import Block
    from shoal.server.metrics.stitch import END, cutoffs

    limits = cutoffs(metric_reads.starts(session, series[0].job_id)) if len(series) > 1 else {}
    for one in series:
        limit = limits.get(one.attempt, int(END))
        for row in blocks.get(one.id, ()):
            points = Block(row.body, row.first).points
            points = points.where((points.arrivals > reports.cursor) & (points.steps < limit))
            if len(points.steps):
                reports.curve.add(_numbers(points.values.tolist()))
                reports.step = int(points.steps[-1])


def _numbers(values: list[Any]) -> list[float]:
    return [v for v in values if isinstance(v, float)]
