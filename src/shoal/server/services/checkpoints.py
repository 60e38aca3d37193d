"""Checkpoints: captured by agents, pushed by people, kept by retention, chosen for resume."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.checkpoints import (
    WORKDIR,
    CheckpointCommit,
    CheckpointCommitted,
    CheckpointFacts,
    CheckpointPush,
    CheckpointView,
    Retention,
)
from shoal.core.errors import Corrupt, Fenced, NotFound
from shoal.core.ids import new_id
from shoal.core.schema import utcnow
from shoal.server.context import Context
from shoal.server.models.artifacts import Checkpoint, holds_state
from shoal.server.models.jobs import Attempt, Job
from shoal.server.policy import Access, AgentIdentity
from shoal.server.services import chunks, find
from shoal.server.services.events import tell
from shoal.store.hashing import Data
from shoal.store.manifest import chunk_hashes, dump_manifest


def capture(
    ctx: Context, who: AgentIdentity, request: CheckpointCommit, *, fenced_too: bool = False
) -> CheckpointCommitted:
    """An agent's complete checkpoint: visible in one step, or not at all; refused from a fenced attempt."""
    check = (lambda *_: None) if fenced_too else _refuse_fenced
    with ctx.db.read() as session:
        workspace_id = session.get_one(Job, who.job_id).workspace_id
        check(session, who)
    lacking = chunks.missing(ctx, workspace_id, chunk_hashes(request.manifest))
    if lacking:
        return CheckpointCommitted(missing=lacking)

    def work(session: Session) -> CheckpointView:
        check(session, who)
        job = session.get_one(Job, who.job_id)
        last = _last_of(session, who, request.name)
        if last is not None and last.manifest_id == manifest_id:
            return view(last)
        if last is not None and request.facts.only_logs and last.facts.get("only_logs") and not last.kept:
            session.delete(last)  # they grow for as long as the job runs; the last ones hold all
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
        tell(session, job, "checkpoint", text, attempt=who.attempt, data={"id": row.id})
        _retain(session, job, who.node)
        return view(row)

    with ctx.gate.open():
        manifest_id = ctx.store.put_manifest(request.manifest)
        made = ctx.db.write(work)
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
    """`also` is done in the same transaction."""
    lacking = chunks.missing(ctx, access.workspace_id, chunk_hashes(request.manifest))
    if lacking:
        return CheckpointCommitted(missing=lacking)

    def work(session: Session) -> CheckpointView:
        row = _row(access.workspace_id, request.name, manifest_id, request.manifest, request.facts)
        row.kept = True
        session.add(row)
        session.flush()
        also(session, row)
        return view(row)

    with ctx.gate.open():
        manifest_id = ctx.store.put_manifest(request.manifest)
        return CheckpointCommitted(checkpoint=ctx.db.write(work))


def list_checkpoints(ctx: Context, access: Access, job: str | None) -> list[CheckpointView]:
    """Oldest first, as they were written."""
    query = select(Checkpoint).where(Checkpoint.workspace_id == access.workspace_id).order_by(Checkpoint.id)
    with ctx.db.read() as session:
        if job is not None:
            query = query.where(Checkpoint.job_id == find.job(session, access, job).id)
        return [view(row) for row in session.scalars(query)]


def get(ctx: Context, access: Access, reference: str) -> CheckpointView:
    with ctx.db.read() as session:
        return view(find.checkpoint(session, access, reference))


def manifest(ctx: Context, access: Access, reference: str) -> bytes:
    with ctx.db.read() as session:
        manifest_id = find.checkpoint(session, access, reference).manifest_id
    return dump_manifest(ctx.store.get_manifest(manifest_id))


def keep(ctx: Context, access: Access, reference: str, kept: bool) -> CheckpointView:
    return _change(ctx, access, reference, lambda row: setattr(row, "kept", kept))


def delete(ctx: Context, access: Access, reference: str) -> None:
    def work(session: Session) -> None:
        session.delete(find.checkpoint(session, access, reference))

    ctx.db.write(work, essential=True)


class Good(NamedTuple):
    """A checkpoint whose every chunk was verified."""

    id: str
    name: str
    parts: dict[int | None, Manifest]
    """Node → what it wrote under this name in one attempt; the first node first."""

    def seen_by(self, node: int | None = None) -> Manifest:
        """Return all parts joined, as on a shared disk. Of files that several nodes wrote, this node's counts, else the lowest's."""
        own = [self.parts[node]] if node in self.parts else []
        return _merge([*own, *self.parts.values()])


def newest_good(ctx: Context, job_id: str) -> tuple[str, Manifest] | None:
    """Return (id, manifest) of the checkpoint that a new attempt of a job is given; damaged ones are marked and skipped.

    It is the newest of the output directory, with the parts of all nodes joined. The working directory counts only where a
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


def choose(ctx: Context, job_id: str, rows: list[Checkpoint]) -> Good | None:
    """Return the newest of these checkpoints whose every chunk verifies; damaged ones are marked and skipped.

    Parts that several nodes wrote under one name in one attempt belong together; with one of them missing they are passed over.
    """
    # Other nodes may hold no more than their ranks' share of what the first has written.
    for row in sorted(_with_weights(rows), key=lambda r: r.node not in (0, None)):
        others = [r for r in rows if r.name == row.name and r.attempt == row.attempt and r.node != row.node]
        if row.node not in (0, None) and any(r.node == 0 for r in others):
            continue
        parts = _newest_per_node([row, *others])
        try:
            good = Good(row.id, row.name, {p.node: ctx.store.get_manifest(p.manifest_id) for p in parts})
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
    """Leave one checkpoint of the working directory beside the one to come: nobody asked for these, so they must not pile up."""
    same = (Checkpoint.job_id == who.job_id, Checkpoint.node == who.node, Checkpoint.name == name)
    rows = session.scalars(select(Checkpoint).where(*same, Checkpoint.kept.is_(False)).order_by(Checkpoint.id.desc()))
    for row in [row for row in rows if place_of(row) == "workdir"][1:]:
        session.delete(row)


def _retain(session: Session, job: Job, node: int) -> None:
    """After a newer checkpoint is safe, and only then, older ones may go. Never the last good one."""
    policy = Retention(keep_last=job.spec.get("keep_last"), keep_best=job.spec.get("keep_best"))
    mine = select(Checkpoint).where(Checkpoint.job_id == job.id, Checkpoint.node == node, holds_state())
    output = [row for row in session.scalars(mine.order_by(Checkpoint.id)) if place_of(row) == "output"]
    rows = _with_weights(output)
    stay = policy.chosen([{"id": r.id, "kept": r.kept, "metrics": r.facts.get("metrics", {})} for r in rows])
    for row in rows:
        if row.id not in stay:
            session.delete(row)


def _with_weights(rows: list[Checkpoint]) -> list[Checkpoint]:
    """Without those that are mere text, unless there are no others: a script may write its settings long before its state."""
    return [row for row in rows if not row.facts.get("only_text")] or rows


def _newest_per_node(parts: list[Checkpoint]) -> list[Checkpoint]:
    newest: dict[int | None, Checkpoint] = {}
    for row in parts:  # newest first
        newest.setdefault(row.node, row)
    return [newest[node] for node in sorted(newest, key=lambda n: (n is not None, n or 0))]


def _merge(manifests: list[Manifest]) -> Manifest:
    """Of files two nodes both wrote, the lower node's counts."""
    files: dict[str, FileEntry] = {}
    for manifest in manifests:
        for file in manifest.files:
            files.setdefault(file.path, file)
    return Manifest(files=[files[path] for path in sorted(files)])


def _is_whole(parts: list[Checkpoint], merged: Manifest) -> bool:
    """All shards are here that the nodes' parts name."""
    lacks = {path for part in parts for path in part.facts.get("lacks", ())}
    return lacks <= {file.path for file in merged.files} and not all(p.facts.get("is_part") for p in parts)


def _mark_damaged(ctx: Context, job_id: str, checkpoint_id: str, text: str) -> None:
    def work(session: Session) -> None:
        session.get_one(Checkpoint, checkpoint_id).damaged = True
        job = session.get_one(Job, job_id)
        tell(session, job, "checkpoint_damaged", f"{checkpoint_id} cannot be used: {text}", data={"id": checkpoint_id})

    ctx.db.write(work, essential=True)


def _change(ctx: Context, access: Access, reference: str, change: Callable[[Checkpoint], None]) -> CheckpointView:
    def work(session: Session) -> CheckpointView:
        row = find.checkpoint(session, access, reference)
        change(row)
        return view(row)

    return ctx.db.write(work)
