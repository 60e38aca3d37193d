"""Jobs that start after others: which of them may enter the queue, and why the others wait.

Why this is safe: this is read from the states of the other jobs in every pass of the scheduler, and nothing of it is stored. A
job that has succeeded stays so, and one that ended may only be resumed; then the jobs after its end may already run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.states import JobState
from shoal.server.db import in_parts
from shoal.server.models.jobs import Job


@dataclass(slots=True)
class Held:
    """Queued jobs that may not start yet."""

    waiting: dict[str, str] = field(default_factory=dict)
    """Job → reason, in words."""
    hopeless: dict[str, str] = field(default_factory=dict)
    """Job → reason why it can never start."""


def held(session: Session, wanted: Mapping[str, Iterable[Mapping[str, Any]]]) -> Held:
    """Return which of these queued jobs may not start: job → its `after` as stored."""
    known = {one["id"] for after in wanted.values() for one in after}
    states: dict[str, str] = {}
    for ids in in_parts(known):
        states.update(
            (job_id, state) for job_id, state in session.execute(select(Job.id, Job.state).where(Job.id.in_(ids)))
        )
    result = Held()
    for job_id, after in wanted.items():
        for one in after:
            state = states.get(one["id"])
            if state is None:
                result.hopeless[job_id] = f"job '{one['job']}', after which it was to start, was deleted"
            elif is_hopeless(one["when"], JobState(state)):
                result.hopeless[job_id] = f"job '{one['job']}', after whose success it was to start, {past(state)}"
            elif not JobState(state).is_terminal:
                to_end = "succeed" if one["when"] == "succeeded" else "end"
                result.waiting.setdefault(job_id, f"waits for job '{one['job']}' to {to_end}")
    for job_id in result.hopeless:
        result.waiting.pop(job_id, None)
    return result


def why_never(session: Session, job: Job) -> str | None:
    """Return why a queued job can never start, or None."""
    return held(session, {job.id: job.spec.get("after") or ()}).hopeless.get(job.id)


def is_hopeless(when: str, state: JobState) -> bool:
    """Return whether a job in this state can no longer end as it must."""
    return when == "succeeded" and state.is_terminal and state is not JobState.SUCCEEDED


def past(state: str) -> str:
    """Return how a job without success ended, as a predicate."""
    return "was stopped" if state == JobState.STOPPED else "failed"
