"""Values of metrics at a step (`loss@500`), as columns of runs.

They are in the packed points of each run, not in its summaries, so they are read for the runs that are shown; sorting or grouping
by one reads those of all matching runs, which has a limit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.errors import InvalidSpec
from shoal.server.db import in_parts
from shoal.server.metrics import reads
from shoal.server.models.metrics import MetricBlock, MetricSeries

MAX_RUNS = 2000
"""Runs whose values are read for one query."""
_NAME = re.compile(r"(?P<metric>.+)@(?P<step>\d{1,15})")


def is_at_step(name: str) -> bool:
    """Return whether a column is a metric at a step."""
    return _NAME.fullmatch(name) is not None


def values(session: Session, job_ids: Sequence[str], name: str) -> dict[str, float]:
    """Return job → newest finite value of the metric at or before the step, of the points that no later attempt has replaced."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidSpec(f"'{name}' is not a metric at a step.", hint="For example: loss@500")
    if len(job_ids) > MAX_RUNS:
        raise InvalidSpec(
            f"'{name}' can be used to sort or group at most {MAX_RUNS} runs; {len(job_ids)} match.",
            hint="Narrow the query, for example: age<7d",
        )
    metric, step = found["metric"], int(found["step"])
    rows: dict[str, list[Any]] = {}
    columns = (MetricSeries.id, MetricSeries.job_id, MetricSeries.attempt, MetricSeries.kind, MetricSeries.name, MetricSeries.first_step)  # fmt: skip
    for some in in_parts(job_ids):
        for row in session.execute(
            select(*columns).where(MetricSeries.job_id.in_(some)).order_by(MetricSeries.attempt)
        ):
            rows.setdefault(row.job_id, []).append(row)
    made = {}
    for job_id, series in rows.items():
        value = _value(session, reads.join_series(series), metric, step)
        if value is not None:
            made[job_id] = value
    return made


def _value(session: Session, metrics: list[Any], name: str, step: int) -> float | None:
    from shoal.server.metrics.columns import Block
    from shoal.server.metrics.stitch import kept

    chosen = next((m for m in metrics if m.name == name), None)
    if chosen is None:
        return None
    bounds = chosen.bounds(reads.first_steps(metrics))
    for series in reversed(chosen.series):  # a later attempt replaces what an earlier one logged from its first step on
        if series.first_step > step:
            continue
        bodies = session.scalars(
            select(MetricBlock.body)
            .where(MetricBlock.series_id == series.id, MetricBlock.step_min <= step)
            .order_by(MetricBlock.first.desc(), MetricBlock.id.desc())
        )
        for body in bodies:
            points = Block(body).points
            mask = kept([points.steps], [bounds[series.attempt]]) & (points.steps <= step)
            numbers = [v for v in points.values[mask].tolist() if isinstance(v, float) and v - v == 0.0]
            if numbers:
                return float(numbers[-1])
    return None
