"""History of a job for its page: the time in each state, and the command that runs it again."""

from __future__ import annotations

from datetime import datetime

from shoal.core.jobs import JobView
from shoal.core.schema import Utc, View, utcnow
from shoal.core.states import JobState
from shoal.server.web.command import training_command
from shoal.server.web.drafts.job import alone

_STATES = {state.value for state in JobState}


class Span(View):
    state: str
    start: Utc
    end: Utc
    seconds: float
    left: float
    """Left edge, in per cent of the whole."""
    width: float


def timeline(job: JobView) -> list[Span]:
    """Return one span per state of the job, in order. The last one reaches until now unless the job has ended."""
    moves = [(e.at, e.kind) for e in job.events if e.kind in _STATES]
    if not moves:
        return []
    end = max(job.ended_at or utcnow(), moves[-1][0])
    whole = max(1e-3, (end - moves[0][0]).total_seconds())
    spans = []
    for (start, state), (stop, _) in zip(moves, [*moves[1:], (end, "")], strict=True):
        if JobState(state).is_terminal and stop == end:
            continue
        spans.append(_span(state, start, stop, moves[0][0], whole))
    return spans


def without_reason(job: JobView, text: str | None) -> str:
    """Return a text of the history without the sentence that the head of a failed job's page already shows.

    A node's reason is a part of that sentence; messages of events contain it.
    """
    if not text or not job.reason or job.status != JobState.FAILED:
        return text or ""
    return "" if text in job.reason else text.replace(job.reason, "").strip(" :()")


def rerun_command(job: JobView) -> str:
    """Return the command that runs the same job again under another name, in the folder the code came from."""
    again = alone(job.spec).model_copy(update={"name": f"{job.name}-again"})
    return training_command(again, workspace=job.workspace, source=job.source)


def _span(state: str, start: datetime, stop: datetime, first: datetime, whole: float) -> Span:
    seconds = max(0.0, (stop - start).total_seconds())
    return Span(
        state=state,
        start=start,
        end=stop,
        seconds=seconds,
        left=round(100 * (start - first).total_seconds() / whole, 3),
        width=round(100 * seconds / whole, 3),
    )
