"""Runs made elsewhere (a run directory of the SDK or of `shoal run`), imported as jobs.

Such a job has one attempt, which has ended from the start and belongs to no engine: it is never scheduled, stopped or resumed.
Its logs and metrics are stored by the same functions as those of agents.
"""

from __future__ import annotations

import secrets
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shoal.core.agents import SegmentReply
from shoal.core.artifacts import Manifest
from shoal.core.bugs import BugCommit, BugCommitted
from shoal.core.checkpoints import CheckpointCommit, CheckpointCommitted
from shoal.core.errors import NameTaken, NotAllowedNow
from shoal.core.ids import new_id
from shoal.core.jobs import JobSpec, JobSummary
from shoal.core.metrics import MediaCommit, MediaCommitted, RunImport, RunImported, RunState
from shoal.core.run_params import params_of
from shoal.core.schema import utcnow
from shoal.core.states import AttemptState, JobState, NodeState
from shoal.server import lookup
from shoal.server.artifacts import checkpoints, media
from shoal.server.artifacts.commit import record
from shoal.server.context import Context
from shoal.server.jobs import bug_capsules, streams, views
from shoal.server.jobs.events import record_event
from shoal.server.models.jobs import Attempt, Job, Node, StreamHead
from shoal.server.models.sources import Source
from shoal.server.policy import Access, AgentIdentity, hash_token

ATTEMPT, NODE = 1, 0


def begin(ctx: Context, access: Access, request: RunImport) -> RunImported:
    """Find or create the job of a run. The reply says how much of each part has already arrived."""

    def work(session: Session, manifest_id: str) -> RunImported:
        job = session.scalar(
            select(Job).where(Job.workspace_id == access.workspace_id, Job.run_id == request.run_id)
        ) or _make(session, access, request, manifest_id)
        attempt_id = _attempt_id(session, job)
        rows = session.execute(
            select(StreamHead.stream, StreamHead.next_seq).where(StreamHead.attempt_id == attempt_id)
        )
        heads = {stream: head for stream, head in rows if "/" in stream}
        return RunImported(job=views.job_summary(session, job), heads=heads)

    made = record(ctx, Manifest(files=[]), work)
    ctx.live.job_changed(made.job.id)
    return made


def append(
    ctx: Context, access: Access, job: str, stream: str, part: str, seq_first: int, count: int, body: bytes
) -> SegmentReply:
    """Append lines of one of the run's files; `seq_first` is the number of the first line in that file."""
    return streams.append_part(ctx, _identity(ctx, access, job), stream, part, seq_first, count, body)


def capture(ctx: Context, access: Access, job: str, request: CheckpointCommit) -> CheckpointCommitted:
    return checkpoints.capture(ctx, _identity(ctx, access, job), request, fenced_too=True)


def commit_media(ctx: Context, access: Access, job: str, request: MediaCommit) -> MediaCommitted:
    return media.commit(ctx, _identity(ctx, access, job), request)


def commit_bug(ctx: Context, access: Access, job: str, request: BugCommit) -> BugCommitted:
    return bug_capsules.commit(ctx, _identity(ctx, access, job), request)


def set_state(ctx: Context, access: Access, job: str, request: RunState) -> JobSummary:
    """Set the state and progress of an imported run, as its client reports it. Idempotent."""
    who = _identity(ctx, access, job)

    def work(session: Session) -> JobSummary:
        row = session.get_one(Job, who.job_id)
        changed = row.state != request.status or row.reason != request.reason
        row.state, row.reason, row.exit_code = request.status.value, request.reason, request.exit_code
        row.started_at = request.started or row.started_at
        row.ended_at = (request.ended or row.ended_at or utcnow()) if request.status.is_terminal else None
        if request.progress is not None:
            row.progress = request.progress.model_dump(mode="json")
        node = session.get_one(Node, (who.attempt_id, NODE))
        node.exit_code, node.reason = request.exit_code, request.reason
        attempt = session.get_one(Attempt, who.attempt_id)
        attempt.started_at, attempt.ended_at = row.started_at, row.ended_at
        attempt.result = request.status.value if request.status.is_terminal else None
        attempt.reason = request.reason
        if changed:
            record_event(session, row, request.status.value, request.reason or f"the run is {request.status.value}")
        return views.job_summary(session, row)

    view = ctx.db.write(work)
    ctx.live.job_changed(who.job_id)
    return view


def refuse(job: Job, what: str) -> None:
    """Raise if the job was imported; used for actions that only jobs of this server allow."""
    if job.run_id is not None:
        raise NotAllowedNow(
            f"Job '{job.name}' ran elsewhere and was imported; it cannot be {what} on this server.",
            hint=f"shoal training run NEW-NAME --checkpoint {job.name}/CHECKPOINT -- SCRIPT"
            if what == "resumed"
            else None,
        )


def _identity(ctx: Context, access: Access, job: str) -> AgentIdentity:
    with ctx.db.read() as session:
        row = lookup.job(session, access, job)
        if row.run_id is None:
            raise NotAllowedNow(f"Job '{row.name}' is a job of this server; only runs made elsewhere can be imported.")
        return AgentIdentity(row.id, _attempt_id(session, row), ATTEMPT, NODE)


def _attempt_id(session: Session, job: Job) -> str:
    return session.scalars(select(Attempt.id).where(Attempt.job_id == job.id, Attempt.number == ATTEMPT)).one()


def _make(session: Session, access: Access, request: RunImport, manifest_id: str) -> Job:
    now = utcnow()
    source = Source(
        id=new_id("src"),
        workspace_id=access.workspace_id,
        manifest_id=manifest_id,
        size=0,
        files=0,
        origin={"kind": "run", "path": request.path, "host": request.host},
        created_at=now,
    )
    session.add(source)
    session.flush()
    spec = JobSpec(
        name=request.name,
        entry=request.argv or ["-"],
        source_id=source.id,
        accels=min(request.world_size, 1024),
        max_restarts=0,
    )
    job = Job(
        id=new_id("job"),
        workspace_id=access.workspace_id,
        name=request.name,
        spec=spec.model_dump(mode="json"),
        source_id=source.id,
        inputs=[],
        created_by=access.principal.email,
        state=JobState.RUNNING.value,
        priority=0,
        created_at=_not_after(request.created, now),
        started_at=_not_after(request.created, now),
        attempts=1,
        run_id=request.run_id,
        params=params_of(spec.entry),
    )
    session.add(job)
    try:
        session.flush()
    except IntegrityError:
        raise NameTaken(
            f"There is already a job '{request.name}' in workspace '{access.workspace}'.",
            hint="shoal training import DIR --name ANOTHER-NAME",
        ) from None
    _add_attempt(session, job, request, now)
    record_event(session, job, "imported", f"imported by {access.principal.email}, from {request.host or 'elsewhere'}")
    return job


def _add_attempt(session: Session, job: Job, request: RunImport, now: datetime) -> None:
    """Add the run's attempt, ended and fenced from the start, so that neither the scheduler nor an agent acts on it."""
    attempt = Attempt(
        id=new_id("att"),
        job_id=job.id,
        number=ATTEMPT,
        state=AttemptState.ENDED.value,
        fenced=True,
        num_nodes=1,
        created_at=job.created_at,
        started_at=job.created_at,
    )
    session.add(attempt)
    session.flush()
    session.add(
        Node(
            attempt_id=attempt.id,
            index=NODE,
            machine=request.host or "elsewhere",
            slots=list(range(min(request.world_size, 1024))),
            state=NodeState.EXITED.value,
            token_hash=hash_token(secrets.token_hex(32)),
            final=True,
        )
    )
    session.flush()


def _not_after(moment: datetime, now: datetime) -> datetime:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)
    return min(aware, now)
