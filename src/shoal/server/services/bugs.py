"""Steps that failed, as agents tell of them: told at once, their capsules committed when all of them is here.

Capsules are no checkpoints: they are in no list of them, none is resumed from, and retention does not count them.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.artifacts import Manifest
from shoal.core.bugs import BugCommit, BugCommitted, BugView
from shoal.core.errors import NotAllowedNow, NotFound
from shoal.core.ids import new_id
from shoal.server.context import Context
from shoal.server.models.bugs import Bug
from shoal.server.models.jobs import Job
from shoal.server.policy import Access, AgentIdentity
from shoal.server.services import chunks, find
from shoal.server.services.events import tell
from shoal.store.manifest import chunk_hashes, dump_manifest


def commit(ctx: Context, who: AgentIdentity, request: BugCommit) -> BugCommitted:
    """Once per line of a rank's spool file, however often it is sent. From fenced attempts too: it is theirs."""
    with ctx.db.read() as session:
        workspace_id = session.get_one(Job, who.job_id).workspace_id
    manifest = request.manifest
    lacking = chunks.missing(ctx, workspace_id, chunk_hashes(manifest)) if manifest is not None else []
    if lacking or manifest is None:
        bug_id = ctx.db.write(lambda session: _row(session, who, request).id)
    else:
        with ctx.gate.open():
            manifest_id = ctx.store.put_manifest(manifest)
            bug_id = ctx.db.write(lambda session: _complete(session, who, request, manifest, manifest_id))
    ctx.live.job_changed(who.job_id)
    return BugCommitted(missing=lacking, id=bug_id)


def list_bugs(ctx: Context, access: Access, job: str) -> list[BugView]:
    """Oldest first."""
    with ctx.db.read() as session:
        return of_job(session, find.job(session, access, job).id)


def of_job(session: Session, job_id: str) -> list[BugView]:
    return [_view(row) for row in session.scalars(select(Bug).where(Bug.job_id == job_id).order_by(Bug.at, Bug.id))]


def manifest(ctx: Context, access: Access, job: str, bug_id: str) -> bytes:
    """Of its capsule."""
    with ctx.db.read() as session:
        row = find.job(session, access, job)
        bug = session.scalar(select(Bug).where(Bug.job_id == row.id, Bug.id == bug_id))
        if bug is None:
            raise NotFound(
                f"There is no bug '{bug_id}' in job '{row.name}'.", hint=f"shoal training inspect {row.name}"
            )
        if bug.manifest_id is None:
            raise NotAllowedNow(f"The capsule of step {bug.step} is not here yet: its node has not sent all of it.")
    return dump_manifest(ctx.store.get_manifest(bug.manifest_id))


def _row(session: Session, who: AgentIdentity, request: BugCommit) -> Bug:
    """The one told of before, or a new one with its event."""
    known = find.of_line(session, Bug, who, request.rank, request.n)
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
    tell(session, job, "bug", text, attempt=who.attempt, data=data)
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
