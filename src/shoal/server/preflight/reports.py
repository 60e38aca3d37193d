"""Reports of preflights, stored as events of the preflight and of the job it was made for."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.preflight import VARIABLE, PreflightReport
from shoal.server import lookup
from shoal.server.jobs.events import record_event
from shoal.server.models.jobs import Attempt, Event, Job
from shoal.server.policy import Access

KIND = "preflight"


def is_one(job: Job) -> bool:
    return VARIABLE in job.spec["env"]


def of_job(session: Session, job_id: str) -> PreflightReport | None:
    """Return a job's newest preflight report, or None."""
    found = select(Event.data).where(Event.job_id == job_id, Event.kind == KIND).order_by(Event.seq.desc()).limit(1)
    data = session.scalar(found)
    return None if data is None else PreflightReport.model_validate(data)


def note(session: Session, attempt: Attempt, told: dict[str, Any] | None) -> None:
    """Record the report that an agent sent. It was written by the user's process, so an invalid one becomes an empty report."""
    job = session.get_one(Job, attempt.job_id)
    if told is None or not is_one(job):
        return
    try:
        report = PreflightReport.model_validate(told)
    except ValidationError:
        report = PreflightReport()
    _record(session, job, report, attempt.number)


def carry_over(session: Session, access: Access, preflight: str | None, job: Job) -> None:
    """Copy a preflight's report to the job it was made for, as that job's first event."""
    if preflight is not None:
        report = of_job(session, lookup.job(session, access, preflight).id)
        if report is not None:
            _record(session, job, report)


def _record(session: Session, job: Job, report: PreflightReport, attempt: int | None = None) -> None:
    data = report.model_dump(mode="json", exclude_none=True)
    record_event(session, job, KIND, _in_words(report), attempt=attempt, data=data)


def _in_words(report: PreflightReport) -> str:
    counts = [(s, sum(f.severity == s for f in report.findings)) for s in ("error", "warning", "hint")]
    found = ", ".join(f"{n} {s}{'' if n == 1 else 's'}" for s, n in counts if n) or "nothing found"
    return f"preflight of {report.steps} step{'' if report.steps == 1 else 's'}: {found}"
