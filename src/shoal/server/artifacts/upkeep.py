"""Maintenance of the store: remove what nothing refers to, find what is damaged."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, select, tuple_
from sqlalchemy.orm import Session

from shoal.core.artifacts import CheckView, Damage, GcView, StoreUsageView
from shoal.core.schema import utcnow
from shoal.core.states import AttemptState, JobState
from shoal.server.artifacts.restore_paths import resumed_manifests
from shoal.server.backup.place import undisturbed
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.leases import snapshots
from shoal.server.models.bugs import Bug
from shoal.server.models.checkpoints import Checkpoint
from shoal.server.models.chunks import WorkspaceChunk
from shoal.server.models.datasets import Dataset
from shoal.server.models.jobs import Attempt, Job
from shoal.server.models.media import Media
from shoal.server.models.snapshots import Snapshot
from shoal.server.models.sources import Source
from shoal.server.models.swarm import Swarm
from shoal.server.models.sweeps import Sweep
from shoal.store.check import check as check_store
from shoal.store.check import usage as store_usage
from shoal.store.gc import collect

_BATCH = 2_000


def gc(ctx: Context, *, grace_s: float, dry_run: bool) -> GcView:
    """Remove unused sources, manifests without a row and chunks without a manifest that are older than the grace period."""
    if dry_run:
        return _collect(ctx, 0, grace_s=grace_s, dry_run=True)
    with undisturbed(ctx.layout):
        removed = _drop_unused(ctx, grace_s)
        return _collect(ctx, removed, grace_s=grace_s, dry_run=False)


def _drop_unused(ctx: Context, grace_s: float) -> int:
    """Delete what no row refers to any more; return how many manifests were deleted."""
    snapshots.drop_expired(ctx)
    _drop_unused_sources(ctx, grace_s)
    with ctx.gc_lock.closed():
        with ctx.db.read() as session:
            used = used_manifests(session)
        unused = [m for m in ctx.store.list_manifests() if m not in used]
        for manifest_id in unused:
            ctx.store.delete_manifest(manifest_id)
    return len(unused)


def _collect(ctx: Context, removed: int, *, grace_s: float, dry_run: bool) -> GcView:
    report = collect(ctx.store, grace_s=grace_s, dry_run=dry_run)
    if not dry_run:
        _forget_gone_chunks(ctx)
    return GcView(
        manifests_removed=removed,
        chunks_kept=report.chunks_kept,
        chunks_removed=report.chunks_deleted,
        bytes_freed=report.bytes_freed,
    )


def check(ctx: Context, *, quarantine: bool) -> CheckView:
    """Read and verify everything; list what is affected by damage. Damaged checkpoints are no longer used for resuming."""
    report = check_store(ctx.store, quarantine=quarantine)
    hurt = set(report.hurt) | report.damaged_manifests

    def work(session: Session) -> list[Damage]:
        found = []
        for checkpoint in session.scalars(select(Checkpoint).where(Checkpoint.manifest_id.in_(hurt))):
            checkpoint.damaged = True
            found.append(
                Damage(kind="checkpoint", id=checkpoint.id, name=f"{checkpoint.job_name or '-'}/{checkpoint.name}")
            )
        for dataset in session.scalars(select(Dataset).where(Dataset.manifest_id.in_(hurt))):
            found.append(Damage(kind="dataset", id=dataset.id, name=f"{dataset.name}@{dataset.version}"))
        for source in session.scalars(select(Source).where(Source.manifest_id.in_(hurt))):
            found.append(Damage(kind="source", id=source.id, name=source.id))
        for medium in session.scalars(select(Media).where(Media.manifest_id.in_(hurt))):
            found.append(Damage(kind="media", id=medium.id, name=medium.name))
        for bug in session.scalars(select(Bug).where(Bug.manifest_id.in_(hurt))):
            found.append(Damage(kind="bug", id=bug.id, name=bug.name))
        for snapshot in session.scalars(select(Snapshot).where(Snapshot.manifest_id.in_(hurt))):
            found.append(Damage(kind="snapshot", id=snapshot.id, name=snapshot.lease))
        return found

    return CheckView(
        chunks=report.chunks,
        size=report.size,
        damaged_chunks=sorted(report.damaged),
        missing_chunks=sorted(report.missing),
        hurt=ctx.db.write(work, essential=True) if hurt else [],
    )


def usage(ctx: Context) -> StoreUsageView:
    found = store_usage(ctx.store)
    return StoreUsageView(
        size=found.size,
        chunks=found.chunks,
        packs=found.packs,
        manifests=found.manifests,
        logical=found.logical,
        trash=found.trash,
    )


def used_manifests(session: Session) -> set[str]:
    """Return the ids of all manifests that a row refers to."""
    used: set[str | None] = set(session.scalars(select(Source.manifest_id)))
    used |= set(session.scalars(select(Dataset.manifest_id)))
    used |= set(session.scalars(select(Checkpoint.manifest_id)))
    used |= set(session.scalars(select(Media.manifest_id)))
    used |= set(session.scalars(select(Bug.manifest_id)))
    used |= set(session.scalars(select(Snapshot.manifest_id)))
    open_jobs = select(Job.inputs).where(Job.state.not_in([s.value for s in JobState if s.is_terminal]))
    sweeps = select(Sweep.inputs)  # also of ended sweeps, as they can be resumed
    swarms = select(Swarm.inputs)
    used |= {
        i["manifest_id"] for query in (open_jobs, sweeps, swarms) for inputs in session.scalars(query) for i in inputs
    }
    resumes = session.scalars(select(Attempt.resume).where(Attempt.state != AttemptState.ENDED.value))
    used |= {m for resume in resumes if resume for m in resumed_manifests(resume)}
    return {m for m in used if m}


def _drop_unused_sources(ctx: Context, grace_s: float) -> None:
    old = utcnow() - timedelta(seconds=grace_s)
    used = select(Job.source_id).union(select(Sweep.source_id), select(Swarm.source_id))
    ctx.db.write(
        lambda session: session.execute(delete(Source).where(Source.created_at < old, Source.id.not_in(used))) and None,
        essential=True,
    )


def _forget_gone_chunks(ctx: Context) -> None:
    """Delete the records of which workspace uploaded a chunk, for chunks that no longer exist."""
    last: tuple[str, bytes] = ("", b"")
    while True:
        with ctx.db.read() as session:
            key = tuple_(WorkspaceChunk.workspace_id, WorkspaceChunk.hash)
            rows = session.execute(
                select(WorkspaceChunk.workspace_id, WorkspaceChunk.hash)
                .where(key > last)
                .order_by(WorkspaceChunk.workspace_id, WorkspaceChunk.hash)
                .limit(_BATCH)
            ).all()
        if not rows:
            return
        last = (rows[-1][0], rows[-1][1])
        gone = [bytes.fromhex(h) for h in ctx.store.missing({row[1].hex() for row in rows})]
        _forget(ctx, gone)


def _forget(ctx: Context, hashes: list[bytes]) -> None:
    for some in in_parts(hashes):
        query = delete(WorkspaceChunk).where(WorkspaceChunk.hash.in_(some))
        ctx.db.write(lambda session, query=query: session.execute(query) and None, essential=True)  # type: ignore[misc]
