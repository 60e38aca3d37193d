"""Checkpoints: committed by agents or people, deleted by retention, chosen for resuming."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.audit import AuditAction
from shoal.core.checkpoints import (
    WORKDIR,
    CheckpointCommit,
    CheckpointCommitted,
    CheckpointFacts,
    CheckpointPush,
    CheckpointView,
)
from shoal.core.errors import Corrupt, Fenced, NotFound
from shoal.core.ids import new_id
from shoal.core.retention import Retention
from shoal.core.schema import utcnow
from shoal.server import lookup
from shoal.server.artifacts import chunks
from shoal.server.artifacts.commit import find_missing, record
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.jobs.events import record_event
from shoal.server.models.checkpoints import Checkpoint, holds_state
from shoal.server.models.jobs import Attempt, Job
from shoal.server.policy import Access, AgentIdentity
from shoal.store.hashing import Data
from shoal.store.manifest import chunk_hashes, dump_manifest


def capture(
    ctx: Context, who: AgentIdentity, request: CheckpointCommit, *, fenced_too: bool = False
) -> CheckpointCommitted:
    """Commit an agent's checkpoint, or return the chunks that are missing.

    Refused from a fenced attempt unless `fenced_too`.
    """
    check = (lambda *_: None) if fenced_too else _refuse_fenced
    with ctx.db.read() as session:
        workspace_id = session.get_one(Job, who.job_id).workspace_id
        check(session, who)
    if missing := find_missing(ctx, workspace_id, request.manifest):
        return CheckpointCommitted(missing=missing)

    def work(session: Session, manifest_id: str) -> CheckpointView:
        check(session, who)
        job = session.get_one(Job, who.job_id)
        last = _last_of(session, who, request.name)
        if last is not None and last.manifest_id == manifest_id:
            return view(last)
        if last is not None and request.facts.only_logs and last.facts.get("only_logs") and not last.kept:
            session.delete(last)  # logs only grow while the job runs, so the newest version contains all of them
        if request.facts.place == "workdir":
            _drop_older(session, who, request.name)
        row = _row(workspace_id, request.name, manifest_id, request.manifest, request.facts)
        row.job_id, row.job_name, row.attempt, row.node = job.id, job.name, who.attempt, who.node
        session.add(row)
        session.flush()
        named = {".": "the output directory", WORKDIR: "the working directory"}
        what = named.get(request.name, request.name)
        step = f" (step {request.facts.step})" if request.facts.step is not None else ""
        text = f"checkpoint of {what}{step} from node {who.node} is safe"
        record_event(session, job, "checkpoint", text, attempt=who.attempt, data={"id": row.id})
        _retain(session, job, who.node)
        return view(row)

    made = record(ctx, request.manifest, work)
    ctx.live.job_changed(who.job_id)
    return CheckpointCommitted(checkpoint=made)


def put_chunks(ctx: Context, who: AgentIdentity, body: Data) -> int:
    with ctx.db.read() as session:
        workspace_id = session.get_one(Job, who.job_id).workspace_id
    return chunks.put(ctx, workspace_id, body)


def push(
    ctx: Context,
    access: Access,
    request: CheckpointPush,
    *,
    also: Callable[[Session, Checkpoint], None] = lambda session, row: None,
) -> CheckpointCommitted:
    """Commit a person's checkpoint, or return the chunks that are missing. `also` runs in the same transaction."""
    if missing := find_missing(ctx, access.workspace_id, request.manifest):
        return CheckpointCommitted(missing=missing)

    def work(session: Session, manifest_id: str) -> CheckpointView:
        row = _row(access.workspace_id, request.name, manifest_id, request.manifest, request.facts)
        row.kept = True
        session.add(row)
        session.flush()
        also(session, row)
        return view(row)

    return CheckpointCommitted(checkpoint=record(ctx, request.manifest, work))


def list_checkpoints(ctx: Context, access: Access, job: str | None) -> list[CheckpointView]:
    """Return a workspace's checkpoints (or those of one job), oldest first."""
    query = select(Checkpoint).where(Checkpoint.workspace_id == access.workspace_id).order_by(Checkpoint.id)
    with ctx.db.read() as session:
        if job is not None:
            query = query.where(Checkpoint.job_id == lookup.job(session, access, job).id)
        return [view(row) for row in session.scalars(query)]


def get(ctx: Context, access: Access, reference: str) -> CheckpointView:
    with ctx.db.read() as session:
        return view(lookup.checkpoint(session, access, reference))


def manifest(ctx: Context, access: Access, reference: str) -> bytes:
    with ctx.db.read() as session:
        manifest_id = lookup.checkpoint(session, access, reference).manifest_id
    return dump_manifest(ctx.store.get_manifest(manifest_id))


def keep(ctx: Context, access: Access, reference: str, kept: bool) -> CheckpointView:
    return _change(ctx, access, reference, lambda row: setattr(row, "kept", kept))


def delete(ctx: Context, access: Access, reference: str) -> None:
    def work(session: Session) -> None:
        row = lookup.checkpoint(session, access, reference)
        session.delete(row)
        record_action(session, AuditAction.CHECKPOINT_DELETE, row.name, row.id, workspace=access)

    ctx.db.write(work, essential=True)


class IntactCheckpoint(NamedTuple):
    """Checkpoint whose every chunk was verified."""

    id: str
    name: str
    parts: dict[int | None, Manifest]
    """Node → its part, written under this name in one attempt; the first node first."""

    def seen_by(self, node: int | None = None) -> Manifest:
        """Return all parts joined, as on a shared disk.

        Of a file that several nodes wrote, this node's copy is used, else the lowest's.
        """
        own = [self.parts[node]] if node in self.parts else []
        return _merge([*own, *self.parts.values()])


def newest_intact(ctx: Context, job_id: str) -> tuple[str, Manifest] | None:
    """Return (id, manifest) of the checkpoint that a new attempt of a job is given; damaged ones are marked and skipped.

    It is the newest of the output directory, with the parts of all nodes joined. The working directory is used only if the
    script has saved nowhere else.
    """
    rows = usable(ctx, job_id)
    found = None
    for place in ("output", "workdir"):
        found = found or choose(ctx, job_id, [row for row in rows if place_of(row) == place])
    return (found.id, found.seen_by()) if found else None


def usable(ctx: Context, job_id: str) -> list[Checkpoint]:
    """Return the checkpoints of a job that hold state and are not known to be damaged, newest first."""
    query = select(Checkpoint).where(Checkpoint.job_id == job_id, Checkpoint.damaged.is_(False), holds_state())
    with ctx.db.read() as session:
        return list(session.scalars(query.order_by(Checkpoint.id.desc())))


def place_of(row: Checkpoint) -> str:
    """Return where the script wrote it: 'output' or 'workdir'."""
    return str(row.facts.get("place", "output"))


def choose(ctx: Context, job_id: str, rows: list[Checkpoint]) -> IntactCheckpoint | None:
    """Return the newest of these checkpoints whose every chunk verifies; damaged ones are marked and skipped.

    Parts that several nodes wrote under one name in one attempt belong together; they are skipped if one of them is missing.
    """
    # The first node's part comes first: those of other nodes may contain only their ranks' share.
    for row in sorted(_with_weights(rows), key=lambda r: r.node not in (0, None)):
        others = [r for r in rows if r.name == row.name and r.attempt == row.attempt and r.node != row.node]
        if row.node not in (0, None) and any(r.node == 0 for r in others):
            continue
        parts = _newest_per_node([row, *others])
        try:
            good = IntactCheckpoint(row.id, row.name, {p.node: ctx.store.get_manifest(p.manifest_id) for p in parts})
            if not _is_whole(parts, good.seen_by()):
                continue
            for name in {h for manifest in good.parts.values() for h in chunk_hashes(manifest)}:
                ctx.store.get(name)
            return good
        except (Corrupt, NotFound) as error:
            _mark_damaged(ctx, job_id, row.id, str(error))
    return None


def view(row: Checkpoint) -> CheckpointView:
    facts = CheckpointFacts.model_validate(row.facts)
    return CheckpointView(
        id=row.id,
        name=row.name,
        job_id=row.job_id,
        job=row.job_name,
        attempt=row.attempt,
        node=row.node,
        timestamp=row.created_at,
        size=row.size,
        files=row.files,
        manifest_id=row.manifest_id,
        kept=bool(row.kept),
        damaged=bool(row.damaged),
        **facts.model_dump(exclude={"metrics", "only_text", "is_part", "lacks"}),
    )


def _row(workspace_id: str, name: str, manifest_id: str, manifest: Manifest, facts: CheckpointFacts) -> Checkpoint:
    return Checkpoint(
        id=new_id("ckpt"),
        workspace_id=workspace_id,
        name=name,
        manifest_id=manifest_id,
        size=manifest.size,
        files=len(manifest.files),
        facts=facts.model_dump(mode="json"),
        kept=False,
        damaged=False,
        created_at=utcnow(),
    )


def _refuse_fenced(session: Session, who: AgentIdentity) -> None:
    if session.get_one(Attempt, who.attempt_id).fenced:
        raise Fenced()


def _last_of(session: Session, who: AgentIdentity, name: str) -> Checkpoint | None:
    return session.scalar(
        select(Checkpoint)
        .where(
            Checkpoint.job_id == who.job_id,
            Checkpoint.attempt == who.attempt,
            Checkpoint.node == who.node,
            Checkpoint.name == name,
        )
        .order_by(Checkpoint.id.desc())
        .limit(1)
    )


def _drop_older(session: Session, who: AgentIdentity, name: str) -> None:
    """Delete all but the newest checkpoint of the working directory: they are made unasked and must not fill the store."""
    same = (Checkpoint.job_id == who.job_id, Checkpoint.node == who.node, Checkpoint.name == name)
    rows = session.scalars(select(Checkpoint).where(*same, Checkpoint.kept.is_(False)).order_by(Checkpoint.id.desc()))
    for row in [row for row in rows if place_of(row) == "workdir"][1:]:
        session.delete(row)


def _retain(session: Session, job: Job, node: int) -> None:
    """Delete older checkpoints by the job's retention rules.

    Called only after a newer one is stored; never deletes the last one.
    """
    policy = Retention(keep_last=job.spec.get("keep_last"), keep_best=job.spec.get("keep_best"))
    mine = select(Checkpoint).where(Checkpoint.job_id == job.id, Checkpoint.node == node, holds_state())
    output = [row for row in session.scalars(mine.order_by(Checkpoint.id)) if place_of(row) == "output"]
    rows = _with_weights(output)
    stay = policy.chosen([{"id": r.id, "kept": r.kept, "metrics": r.facts.get("metrics", {})} for r in rows])
    for row in rows:
        if row.id not in stay:
            session.delete(row)


def _with_weights(rows: list[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints that are not only text, or all if there are no others: scripts write settings before weights."""
    return [row for row in rows if not row.facts.get("only_text")] or rows


def _newest_per_node(parts: list[Checkpoint]) -> list[Checkpoint]:
    newest: dict[int | None, Checkpoint] = {}
    for row in parts:  # newest first
        newest.setdefault(row.node, row)
    return [newest[node] for node in sorted(newest, key=lambda n: (n is not None, n or 0))]


def _merge(manifests: list[Manifest]) -> Manifest:
    """Join manifests; of a file in several of them the first one's is used."""
    files: dict[str, FileEntry] = {}
    for manifest in manifests:
        for file in manifest.files:
            files.setdefault(file.path, file)
    return Manifest(files=[files[path] for path in sorted(files)])


def _is_whole(parts: list[Checkpoint], merged: Manifest) -> bool:
    """Check whether all shards that the parts name are present."""
    missing = {path for part in parts for path in part.facts.get("lacks", ())}
    return missing <= {file.path for file in merged.files} and not all(p.facts.get("is_part") for p in parts)


def _mark_damaged(ctx: Context, job_id: str, checkpoint_id: str, text: str) -> None:
    def work(session: Session) -> None:
        session.get_one(Checkpoint, checkpoint_id).damaged = True
        job = session.get_one(Job, job_id)
        record_event(
            session, job, "checkpoint_damaged", f"{checkpoint_id} cannot be used: {text}", data={"id": checkpoint_id}
        )

    ctx.db.write(work, essential=True)


def _change(ctx: Context, access: Access, reference: str, change: Callable[[Checkpoint], None]) -> CheckpointView:
    def work(session: Session) -> CheckpointView:
        row = lookup.checkpoint(session, access, reference)
        change(row)
        return view(row)

    return ctx.db.write(work)
