"""Events of jobs: every change of state is an event, written in the same transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shoal.core.errors import NotAllowedNow
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.server.models.jobs import Event, Job

WARNING = "warning"
"""Kind of an event that the job's page and `training inspect` show at their top."""


def record_event(
    session: Session,
    job: Job,
    kind: str,
    message: str,
    *,
    attempt: int | None = None,
    data: dict[str, Any] | None = None,
) -> None:
    """Add an event to a job, with the next sequence number."""
    last = session.scalar(select(func.max(Event.seq)).where(Event.job_id == job.id))
    session.add(
        Event(
            job_id=job.id,
            seq=(last or 0) + 1,
            at=utcnow(),
            kind=kind,
            message=message,
            attempt=attempt,
            data=data or {},
        )
    )
    session.flush()


def first(job_id: str, kind: str, message: str) -> dict[str, Any]:
    """Return the row of a new job's first event, for bulk inserts."""
    return {"job_id": job_id, "seq": 1, "at": utcnow(), "kind": kind, "message": message, "attempt": None, "data": {}}


def move(
    session: Session,
    job: Job,
    state: JobState,
    message: str,
    *,
    attempt: int | None = None,
    data: dict[str, Any] | None = None,
) -> None:
    """Change a job's state and record the event; raise NotAllowedNow for an illegal transition."""
    if not JobState(job.state).may_become(state):
        raise NotAllowedNow(f"Job '{job.name}' is {job.state} and cannot become {state}.")
    job.state = state.value
    job.ended_at = utcnow() if state.is_terminal else None
    if state is not JobState.RUNNING and job.progress:
        job.progress = {**job.progress, "eta_s": None, "eta_low_s": None, "eta_high_s": None}
    record_event(session, job, state.value, message, attempt=attempt, data=data)
