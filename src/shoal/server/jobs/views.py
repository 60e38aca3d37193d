"""Conversion of job rows to the views of the API."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.jobs import AttemptView, EventView, JobSpec, JobSummary, JobView, NodeView, Progress
from shoal.core.states import AttemptState, JobState, NodeState
from shoal.server.billing import service as billing
from shoal.server.jobs import after, bug_capsules
from shoal.server.jobs.events import WARNING
from shoal.server.metrics import reads as metric_reads
from shoal.server.models.jobs import Attempt, Event, Job, Node
from shoal.server.models.sources import Source
from shoal.server.preflight import reports as preflight_reports


def job_summary(session: Session, job: Job) -> JobSummary:
    return JobSummary(**_summary(session, job))


def job_view(session: Session, job: Job, workspace: str, waiting: str | None) -> JobView:
    attempts = session.scalars(select(Attempt).where(Attempt.job_id == job.id).order_by(Attempt.number))
    events = session.scalars(select(Event).where(Event.job_id == job.id).order_by(Event.seq)).all()
    source = session.get_one(Source, job.source_id)
    used = billing.of_jobs(session, [job.id])
    return JobView(
        **_summary(session, job),
        workspace=workspace,
        created_by=job.created_by,
        description=job.description,
        note=job.note,
        spec=JobSpec.model_validate(job.spec),
        source={**source.origin, "id": source.id, "size": source.size, "files": source.files},
        waiting=waiting if job.state in (JobState.QUEUED, JobState.STARTING) else None,
        warnings=[e.message for e in events if e.kind == WARNING and e.attempt == job.attempts],
        attempt_list=[_attempt(session, a) for a in attempts],
        events=[
            EventView(seq=e.seq, at=e.at, kind=e.kind, message=e.message, attempt=e.attempt, data=e.data)
            for e in events
        ],
        metrics=metric_reads.last_values(session, job.id),
        bugs=bug_capsules.of_job(session, job.id),
        chain=after.chain(session, job),
        preflight=preflight_reports.of_job(session, job.id),
        slot_seconds=round(used.slot_s, 3),
        costs=used.costs,
    )


def _summary(session: Session, job: Job) -> dict[str, Any]:
    running = session.scalar(
        select(Attempt.num_nodes).where(Attempt.job_id == job.id).order_by(Attempt.number.desc()).limit(1)
    )
    return {
        "id": job.id,
        "name": job.name,
        "status": JobState(job.state),
        "stop_requested": job.stop_requested_at is not None,
        "nodes": running or job.spec["max_nodes"],
        "accels": job.spec["accels"],
        "attempts": job.attempts,
        "progress": Progress.model_validate(job.progress) if job.progress else None,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "exit_code": job.exit_code,
        "reason": job.reason,
        "imported": job.run_id is not None,
        "is_preflight": preflight_reports.is_one(job),
        "kind": job.kind,
        "title": job.title,
        "tags": job.tags,
        "starred": job.starred,
        "archived": job.archived_at is not None,
    }


def _attempt(session: Session, attempt: Attempt) -> AttemptView:
    nodes = session.scalars(select(Node).where(Node.attempt_id == attempt.id).order_by(Node.index))
    return AttemptView(
        number=attempt.number,
        state=AttemptState(attempt.state),
        result=attempt.result,
        reason=attempt.reason,
        num_nodes=attempt.num_nodes,
        created_at=attempt.created_at,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        nodes=[
            NodeView(
                index=n.index,
                machine=n.machine,
                slots=n.slots,
                state=NodeState(n.state),
                pid=n.pid,
                exit_code=n.exit_code,
                reason=n.reason,
                paths=n.paths,
                sandbox=n.sandbox,
            )
            for n in nodes
        ],
    )
