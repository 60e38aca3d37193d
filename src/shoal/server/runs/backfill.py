"""Parameters and metric summaries of jobs from older versions, which were stored without them.

They are filled in before the first query of a workspace, some jobs per transaction. Jobs of this version have both from the start.
"""

from __future__ import annotations

import functools
from pathlib import Path

from sqlalchemy import exists, or_, select
from sqlalchemy.orm import Session

from shoal.core.run_params import params_of
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.metrics import reads, summaries
from shoal.server.models.jobs import Job
from shoal.server.models.metrics import MetricSeries
from shoal.server.models.runs import RunMetric

_AT_ONCE = 50
_done: set[tuple[Path, str]] = set()


def ensure(ctx: Context, workspace_id: str) -> None:
    """Fill in what is missing; done once per workspace and process. Doing it twice at the same time is harmless."""
    key = (ctx.layout.root, workspace_id)
    if key in _done:
        return
    has_series = exists(select(MetricSeries.id).where(MetricSeries.job_id == Job.id))
    has_summary = exists(select(RunMetric.job_id).where(RunMetric.job_id == Job.id))
    missing = select(Job.id).where(
        Job.workspace_id == workspace_id, or_(Job.params.is_(None), has_series & ~has_summary)
    )
    with ctx.db.read() as session:
        ids = list(session.scalars(missing))
    for some in in_parts(ids, _AT_ONCE):
        ctx.db.write(functools.partial(_fill, some))
    _done.add(key)


def _fill(job_ids: list[str], session: Session) -> None:
    for job in session.scalars(select(Job).where(Job.id.in_(job_ids))):
        if job.params is None:
            job.params = params_of(job.spec["entry"], reads.config_of(session, job.id))
        summaries.refresh(session, job.id)
