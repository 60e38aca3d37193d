"""The few metrics that the page of a job shows as numbers: losses first, with the best value where its name tells which end is best."""

from __future__ import annotations

import re

from sqlalchemy import select

from shoal.core.schema import View
from shoal.server.context import Context
from shoal.server.models.runs import RunMetric
from shoal.server.web.job.compare import Better, better

MOST = 4
_LOSS = re.compile(r"(^|[/_.])loss$", re.IGNORECASE)
_RESULT = re.compile(r"loss|acc|perplexity|f1|bleu|reward", re.IGNORECASE)


class KeyNumber(View):
    """One metric as a number."""

    name: str
    last: float
    step: int
    best: float | None
    better: Better | None


def key_numbers(ctx: Context, job_id: str) -> list[KeyNumber]:
    """Return at most `MOST` metrics of a job."""
    with ctx.db.read() as session:
        rows = session.execute(
            select(RunMetric.name, RunMetric.last, RunMetric.last_step, RunMetric.min, RunMetric.max)
            .where(RunMetric.job_id == job_id, RunMetric.last.is_not(None))
        ).all()  # fmt: skip
    chosen = sorted(rows, key=lambda row: (_weight(row.name), row.name))[:MOST]
    return [_number(row.name, row.last or 0.0, row.last_step, row.min, row.max) for row in chosen]


def _number(name: str, last: float | None, step: int, low: float | None, high: float | None) -> KeyNumber:
    end = better(name) if _RESULT.search(name) else None
    best = low if end == "lowest" else high if end == "highest" else None
    return KeyNumber(name=name, last=last or 0.0, step=step, best=best, better=end)


def _weight(name: str) -> int:
    """Return the place of a metric; the charts of the job use the same order."""
    return 0 if _LOSS.search(name) else 1 if _RESULT.search(name) else 2
