"""Failed steps that agents report: recorded at once; their capsules are committed when all chunks have arrived.

Capsules are not checkpoints: they are not listed with them, no job resumes from them, and retention does not count them.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.artifacts import Manifest
from shoal.core.bugs import BugCommit, BugCommitted, BugView
from shoal.core.errors import NotAllowedNow, NotFound
from shoal.core.ids import new_id
from shoal.server import lookup
from shoal.server.artifacts.commit import find_missing, record
from shoal.server.context import Context
from shoal.server.jobs.events import record_event
from shoal.server.models.bugs import Bug
from shoal.server.models.jobs import Job
from shoal.server.policy import Access, AgentIdentity
from shoal.store.manifest import dump_manifest


def commit(ctx: Context, who: AgentIdentity, request: BugCommit) -> BugCommitted:
    """Record a failed step and commit its capsule, or return the missing chunks.

    Idempotent: one row per line of a rank's spool file. Fenced attempts may commit too.
    """
    with ctx.db.read() as session:
        workspace_id = session.get_one(Job, who.job_id).workspace_id
    manifest = request.manifest
    missing = find_missing(ctx, workspace_id, manifest) if manifest is not None else []
    if missing or manifest is None:
        bug_id = ctx.db.write(lambda session: _row(session, who, request).id)
    else:
        bug_id = record(ctx, manifest, lambda session, stored: _complete(session, who, request, manifest, stored))
    ctx.live.job_changed(who.job_id)
    return BugCommitted(missing=missing, id=bug_id)


def list_bugs(ctx: Context, access: Access, job: str) -> list[BugView]:
    """Return a job's failed steps, oldest first."""
    with ctx.db.read() as session:
        return of_job(session, lookup.job(session, access, job).id)


def of_job(session: Session, job_id: str) -> list[BugView]:
    return [_view(row) for row in session.scalars(select(Bug).where(Bug.job_id == job_id).order_by(Bug.at, Bug.id))]


def manifest(ctx: Context, access: Access, job: str, bug_id: str) -> bytes:
    """Return the manifest of a failed step's capsule."""
    with ctx.db.read() as session:
        row = lookup.job(session, access, job)
        bug = session.scalar(select(Bug).where(Bug.job_id == row.id, Bug.id == bug_id))
        if bug is None:
            raise NotFound(
                f"There is no bug '{bug_id}' in job '{row.name}'.", hint=f"shoal training inspect {row.name}"
            )
        if bug.manifest_id is None:
            raise NotAllowedNow(f"The capsule of step {bug.step} has not arrived yet: its node is still sending it.")
    return dump_manifest(ctx.store.get_manifest(bug.manifest_id))


def _row(session: Session, who: AgentIdentity, request: BugCommit) -> Bug:
    """Return the row of a report that was sent before, or create one with its event."""
    known = lookup.of_line(session, Bug, who, request.rank, request.n)
    if known is not None:
        return known
    row = Bug(
        id=new_id("bug"),
        job_id=who.job_id,
        attempt=who.attempt,
        node=who.node,
        at=datetime.fromtimestamp(request.t, UTC),
        size=0,
        files=0,
        **request.model_dump(include={"rank", "n", "step", "seen", "name", "error", "message", "where"}),
    )
    session.add(row)
    job = session.get_one(Job, who.job_id)
    where = f" at {request.where}" if request.where else ""
    text = f"step {request.step} failed on rank {request.rank}{where}: {request.error}: {request.message}"
    data = {"id": row.id, **request.model_dump(include={"step", "rank", "error", "message"})}
    record_event(session, job, "bug", text, attempt=who.attempt, data=data)
    return row


def _complete(session: Session, who: AgentIdentity, request: BugCommit, manifest: Manifest, manifest_id: str) -> str:
    row = _row(session, who, request)
    row.manifest_id, row.size, row.files = manifest_id, manifest.size, len(manifest.files)
    return row.id


def _view(row: Bug) -> BugView:
    return BugView(
        id=row.id,
        name=row.name,
        attempt=row.attempt,
        node=row.node,
        rank=row.rank,
        step=row.step,
        seen=row.seen,
        at=row.at,
        error=row.error,
        message=row.message,
        where=row.where,
        ready=row.manifest_id is not None,
        size=row.size,
        files=row.files,
    )
