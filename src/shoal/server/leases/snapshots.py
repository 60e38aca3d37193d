"""Snapshots of leases: agents save a lease's volume when it ends; it is kept for some days and can start another lease."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Select, select
from sqlalchemy import delete as delete_rows
from sqlalchemy.orm import Session

from shoal.agent.lease.snapshot import TREE
from shoal.core.audit import AuditAction
from shoal.core.commands import Command
from shoal.core.errors import NotAllowedNow, NotFound
from shoal.core.ids import is_id, new_id
from shoal.core.schema import utcnow
from shoal.core.snapshots import RESTORE, SnapshotCommit, SnapshotCommitted, SnapshotView
from shoal.core.states import AttemptState
from shoal.server.artifacts.commit import find_missing, record
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.jobs.events import record_event
from shoal.server.leases import lease_rows
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.leases import Lease
from shoal.server.models.snapshots import Snapshot
from shoal.server.policy import Access, AgentIdentity


def capture(ctx: Context, who: AgentIdentity, request: SnapshotCommit) -> SnapshotCommitted:
    """Commit a snapshot, or return the chunks that are missing. Fenced attempts may commit too: it is the only copy."""
    with ctx.db.read() as session:
        workspace_id = session.get_one(Job, who.job_id).workspace_id
    if missing := find_missing(ctx, workspace_id, request.manifest):
        return SnapshotCommitted(missing=missing)

    def work(session: Session, manifest_id: str) -> SnapshotView:
        job, now = session.get_one(Job, who.job_id), utcnow()
        expires_at = now + timedelta(days=ctx.settings.snapshot_days)
        last = session.scalar(select(Snapshot).where(Snapshot.job_id == job.id).order_by(Snapshot.id.desc()).limit(1))
        if last is not None and last.manifest_id == manifest_id:
            last.created_at, last.expires_at = now, expires_at
            return view(last)  # nothing has changed, or the answer to the first commit was lost
        node = session.get(Node, (who.attempt_id, who.node))
        files = [f for f in request.manifest.files if f.path != TREE]  # TREE is written by the agent, not by the person
        row = Snapshot(
            id=new_id("snap"),
            workspace_id=workspace_id,
            job_id=job.id,
            lease=session.scalar(select(Lease.name).where(Lease.job_id == job.id)) or job.name,
            machine=node.machine if node else None,
            manifest_id=manifest_id,
            size=sum(f.size for f in files),
            files=len(files),
            skipped=request.skipped,
            created_by=job.created_by,
            created_at=now,
            expires_at=expires_at,
        )
        session.add(row)
        session.flush()
        record_event(
            session, job, "snapshot", f"volume saved as snapshot {row.id}", attempt=who.attempt, data={"id": row.id}
        )
        return view(row)

    made = record(ctx, request.manifest, work)
    ctx.live.job_changed(who.job_id)
    return SnapshotCommitted(snapshot=made)


def request(ctx: Context, access: Access, name_or_id: str) -> None:
    """Request a snapshot of a running lease; its processes are paused while the agent takes it."""
    with ctx.db.read() as session:
        lease = lease_rows.find(session, access, name_or_id)
        running = select(Attempt).where(Attempt.job_id == lease.job_id, Attempt.state == AttemptState.RUNNING.value)
        attempt = session.scalar(running)
    if attempt is None:
        raise NotAllowedNow(
            f"Lease '{lease.name}' is not running; a snapshot needs a running lease.",
            hint="shoal machine snapshot list",
        )
    ctx.commands.send(attempt.id, Command.SNAPSHOT)


def list_snapshots(ctx: Context, access: Access, lease: str | None = None) -> list[SnapshotView]:
    """Return a workspace's snapshots, newest first; with `lease` only those of that lease."""
    query = _mine(access).order_by(Snapshot.id.desc())
    if lease is not None:
        query = query.where(Snapshot.lease == lease)
    with ctx.db.read() as session:
        return [view(row) for row in session.scalars(query)]


def get(ctx: Context, access: Access, reference: str) -> SnapshotView:
    with ctx.db.read() as session:
        return view(find_snapshot(session, access, reference))


def delete(ctx: Context, access: Access, reference: str) -> None:
    def work(session: Session) -> None:
        row = find_snapshot(session, access, reference)
        session.delete(row)
        record_action(session, AuditAction.SNAPSHOT_DELETE, row.lease, row.id, workspace=access)

    ctx.db.write(work, essential=True)


def find_snapshot(session: Session, access: Access, reference: str) -> Snapshot:
    """Return a snapshot by its id, or the newest one of the lease with that name."""
    column = Snapshot.id if is_id(reference, "snap") else Snapshot.lease
    found = session.scalar(_mine(access).where(column == reference).order_by(Snapshot.id.desc()).limit(1))
    if found is None:
        raise NotFound(
            f"There is no snapshot '{reference}' in workspace '{access.workspace}'.", hint="shoal machine snapshot list"
        )
    return found


def mount(session: Session, access: Access, reference: str) -> dict[str, str]:
    """Return the job input that restores a snapshot into a new lease."""
    found = find_snapshot(session, access, reference)
    return {"path": RESTORE, "name": found.id, "manifest_id": found.manifest_id}


def drop_expired(ctx: Context) -> None:
    ctx.db.write(
        lambda session: session.execute(delete_rows(Snapshot).where(Snapshot.expires_at < utcnow())) and None,
        essential=True,
    )


def view(row: Snapshot) -> SnapshotView:
    return SnapshotView(
        id=row.id,
        lease=row.lease,
        machine=row.machine,
        tree_hash=row.manifest_id,
        size=row.size,
        files=row.files,
        skipped=row.skipped,
        created_by=row.created_by,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )


def _mine(access: Access) -> Select[Snapshot]:
    return select(Snapshot).where(Snapshot.workspace_id == access.workspace_id, Snapshot.expires_at > utcnow())
