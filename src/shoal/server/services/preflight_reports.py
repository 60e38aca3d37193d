"""What preflights have found, kept as an event of the job it is about."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.preflight import VARIABLE, PreflightReport
from shoal.server.models.jobs import Attempt, Event, Job
from shoal.server.policy import Access
from shoal.server.services import find
from shoal.server.services.events import tell

KIND = "preflight"


def is_one(job: Job) -> bool:
    return VARIABLE in job.spec["env"]


def of_job(session: Session, job_id: str) -> PreflightReport | None:
    """The newest."""
    found = select(Event.data).where(Event.job_id == job_id, Event.kind == KIND).order_by(Event.seq.desc()).limit(1)
    data = session.scalar(found)
    return None if data is None else PreflightReport.model_validate(data)


def note(session: Session, attempt: Attempt, told: dict[str, Any] | None) -> None:
    """An agent's word. What it passes on was written by the script's own process, and may be anything."""
    job = session.get_one(Job, attempt.job_id)
    if told is None or not is_one(job):
        return
    try:
        report = PreflightReport.model_validate(told)
    except ValidationError:
        report = PreflightReport()
    _tell(session, job, report, attempt.number)


def carry_over(session: Session, access: Access, preflight: str | None, job: Job) -> None:
    """To the job it was made for, whose first event it is."""
    if preflight is not None:
        report = of_job(session, find.job(session, access, preflight).id)
        if report is not None:
            _tell(session, job, report)


def _tell(session: Session, job: Job, report: PreflightReport, attempt: int | None = None) -> None:
    data = report.model_dump(mode="json", exclude_none=True)
    tell(session, job, KIND, _in_words(report), attempt=attempt, data=data)


def _in_words(report: PreflightReport) -> str:
    counts = [(s, sum(f.severity == s for f in report.findings)) for s in ("error", "warning", "hint")]
    found = ", ".join(f"{n} {s}{'' if n == 1 else 's'}" for s, n in counts if n) or "nothing found"
    return f"preflight of {report.steps} step{'' if report.steps == 1 else 's'}: {found}"
