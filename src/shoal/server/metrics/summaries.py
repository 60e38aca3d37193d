"""Summaries of metrics per job (`run_metrics`), kept current with every batch of points.

They are written in the transaction that stores the points. A batch that only continues its series is added to the summary;
whenever points may have been replaced (a new attempt, steps that went back) the job's summaries are computed again from the facts
stored beside the blocks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, insert, select
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.orm import Session

from shoal.server.models.metrics import MetricSeries
from shoal.server.models.runs import RunMetric
from shoal.server.policy import AgentIdentity

if TYPE_CHECKING:
    from shoal.server.metrics.columns import Points


def update(session: Session, who: AgentIdentity, batch: list[tuple[MetricSeries, Points, int | None]]) -> None:
    """Add a batch to the summaries of a job: series, its new points, and the last step it had before (None if it is new)."""
    have = set(session.scalars(select(RunMetric.name).where(RunMetric.job_id == who.job_id)))
    in_steps = {s.name for s, _, _ in batch if s.kind == "step"}
    if who.attempt > 1 or any(s.kind != "step" for s, _, _ in batch):
        query = select(MetricSeries.name).where(MetricSeries.job_id == who.job_id, MetricSeries.kind == "step")
        in_steps |= set(session.scalars(query))
    rows = []
    for series, points, before in batch:
        name = series.display_name(in_steps)
        known = before is not None
        if known != (name in have) or (not known and who.attempt > 1) or not _continues(points, before):
            return refresh(session, who.job_id)
        rows.append(_row(who.job_id, name, points))
    statement = upsert(RunMetric)
    new = statement.excluded
    changed = {
        "last": new.last,
        "last_step": new.last_step,
        "min": func.min(func.coalesce(RunMetric.min, new.min), func.coalesce(new.min, RunMetric.min)),
        "max": func.max(func.coalesce(RunMetric.max, new.max), func.coalesce(new.max, RunMetric.max)),
        "count": RunMetric.count + new.count,
    }
    session.execute(statement.on_conflict_do_update(index_elements=["job_id", "name"], set_=changed), rows)
    return None


def refresh(session: Session, job_id: str) -> None:
    """Compute the summaries of a job again from its blocks."""
    from shoal.server.metrics.reads import summaries

    session.flush()
    found = summaries(session, job_id)
    session.execute(delete(RunMetric).where(RunMetric.job_id == job_id))
    rows = [
        {"job_id": job_id, "name": m.name, "last": _finite(m.last), "min": m.min, "max": m.max,
         "last_step": m.last_step, "count": m.count}
        for m in found
    ]  # fmt: skip
    if rows:
        session.execute(insert(RunMetric), rows)


def _continues(points: Points, before: int | None) -> bool:
    import numpy as np

    is_rising = bool((np.diff(points.steps) > 0).all())
    return is_rising and (before is None or int(points.steps[0]) > before)


def _row(job_id: str, name: str, points: Points) -> dict[str, Any]:
    from shoal.server.metrics.columns import summary

    found = summary(points)
    return {
        "job_id": job_id,
        "name": name,
        "last": _finite(points.values[-1]),
        "min": found.value_min,
        "max": found.value_max,
        "last_step": int(points.steps[-1]),
        "count": found.count,
    }


def _finite(value: Any) -> float | None:
    return None if isinstance(value, str) or not math.isfinite(value) else float(value)
