"""What agents ask and report. Most beats change nothing and touch the database only to read."""

from __future__ import annotations

import threading
import time
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.agents import BEAT_INTERVAL_S, BeatReply, BeatRequest, JoinReply, JoinRequest, Mount
from shoal.core.errors import Fenced, NotAllowedNow, NotFound
from shoal.core.jobs import Progress
from shoal.core.schema import utcnow
from shoal.core.states import AttemptState, NodeState
from shoal.server.context import Context
from shoal.server.models.artifacts import Source
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.leases import Lease
from shoal.server.models.people import Workspace
from shoal.server.policy import AgentIdentity, hash_token
from shoal.server.services import (
    attempts,
    checkpoints,
    engine_queue,
    jobs,
    lease_rows,
    ledger,
    neighbours,
    preflight_reports,
    put_back,
)
from shoal.server.services.events import tell
from shoal.server.services.secrets import open_secrets
from shoal.store.manifest import chunk_hashes, dump_manifest

_PROGRESS_EVERY_S = 1.0
_TOGETHER_S = 1.25 * BEAT_INTERVAL_S
"""From a stop to the SIGTERM on several nodes, in which each has asked once: a peer told later fails on those that left."""


def join(ctx: Context, who: AgentIdentity, request: JoinRequest) -> JoinReply:
    """Remember the node; once the whole gang is here, hand out all there is to know."""
    first = ctx.db.write(lambda session: _remember(ctx, session, who, request))
    ctx.live.beat(who.attempt_id, who.node)
    neighbours.remember(ctx, who, request)
    if first is None:
        return JoinReply(ready=False)
    resume = _choose_resume(ctx, who)
    with ctx.db.read() as session:
        job = session.get_one(Job, who.job_id)
        source = session.get_one(Source, job.source_id)
        workspace, spec = session.get_one(Workspace, job.workspace_id), job.spec
        num_nodes = session.get_one(Attempt, who.attempt_id).num_nodes
        mounts = _mounts(job, resume)
    lease, own = lease_rows.take_up(ctx, who) or (None, {})
    return JoinReply(
        ready=True,
        num_nodes=num_nodes,
        entry=spec["entry"],
        accels=spec["accels"],
        launcher=spec["launcher"],
        allow_cpu=spec.get("allow_cpu", False),
        allow_torch_change=spec.get("allow_torch_change", False),
        master_addr=first[0],
        master_port=first[1],
        source=ctx.store.get_manifest(source.manifest_id),
        mounts=mounts,
        env=spec["env"] | {"SHOAL_WORKSPACE": workspace.id},
        secrets=open_secrets(ctx, workspace.id, spec["secrets"])
        | {"SHOAL_JOB_TOKEN": read_token(ctx, who.attempt_id)}
        | own,
        lease=lease,
        neighbours=neighbours.of_mounts(ctx, who, workspace.id, mounts),
        put_back=put_back.of_node(resume, who.node, spec["env"]),
        is_distributed=spec["max_nodes"] * spec["accels"] > 1,
    )


def read_token(ctx: Context, attempt_id: str) -> str:
    """What the workers of an attempt may read their workspace with; good until the attempt ends."""
    return "shoalj_" + ctx.vault.derive(f"read {attempt_id}")


def beat(ctx: Context, who: AgentIdentity, request: BeatRequest) -> BeatReply:
    ctx.live.beat(who.attempt_id, who.node)
    if not request.state.is_terminal:
        ctx.meter.hear(who.attempt_id, who.node)
    with ctx.db.read() as session:
        attempt, node = _rows(session, who)
        changed = _differs(node, request)
        reply = _reply(ctx, session, attempt)
    if reply.left_s is not None:  # a lease is not expected to show progress
        ctx.orders.sign(who.attempt_id)
    if changed:
        reply = ctx.db.write(lambda session: _apply(ctx, session, who, request), essential=True)
        ctx.live.job_changed(who.job_id, schedule=request.state.is_terminal)
    elif request.progress and not reply.fenced:
        _note_progress(ctx, who, request.progress)
    orders = ctx.orders.pending(who.attempt_id, who.node)
    return reply.model_copy(update={"commands": orders}) if orders else reply


def manifest(ctx: Context, who: AgentIdentity, manifest_id: str) -> bytes:
    """The manifest of something the attempt mounts; others do not exist for this agent."""
    if manifest_id not in _readable(ctx, who):
        raise NotFound()
    return dump_manifest(ctx.store.get_manifest(manifest_id))


def chunk(ctx: Context, who: AgentIdentity, name: str) -> bytes:
    """A chunk of the attempt's own source and mounts."""
    if name not in named_chunks(ctx, _readable(ctx, who)):
        raise NotFound()
    return ctx.store.get(name)


def _readable(ctx: Context, who: AgentIdentity) -> tuple[str, ...]:
    with ctx.db.read() as session:
        job = session.get_one(Job, who.job_id)
        resume = session.get_one(Attempt, who.attempt_id).resume or {}
        source = session.get_one(Source, job.source_id)
        mounted = (m.manifest_id for m in _mounts(job, resume))
        return (source.manifest_id, *mounted, *put_back.resumed_manifests(resume))


_hash_lock = threading.Lock()
_hash_cache: dict[tuple[str, ...], frozenset[str]] = {}


def named_chunks(ctx: Context, manifest_ids: tuple[str, ...]) -> frozenset[str]:
    """Which chunks these manifests name; asked for with every chunk, so the last few answers are kept."""
    with _hash_lock:
        if manifest_ids not in _hash_cache:
            while len(_hash_cache) >= 8:
                _hash_cache.pop(next(iter(_hash_cache)))
            _hash_cache[manifest_ids] = frozenset(
                h for m in manifest_ids for h in chunk_hashes(ctx.store.get_manifest(m))
            )
        return _hash_cache[manifest_ids]


_resume_lock = threading.Lock()


def _choose_resume(ctx: Context, who: AgentIdentity) -> dict[str, Any]:
    """Return the checkpoint this attempt is given, and what is put back: chosen once for the whole gang, every byte verified."""
    with _resume_lock:
        with ctx.db.read() as session:
            attempt = session.get_one(Attempt, who.attempt_id)
        if attempt.resume is not None:
            return attempt.resume
        good = checkpoints.newest_good(ctx, who.job_id) if attempt.number > 1 else None
        back = put_back.choose(ctx, who.job_id) if good else []

        def work(session: Session) -> None:
            session.get_one(Attempt, who.attempt_id).resume = choice
            if good:
                job = session.get_one(Job, who.job_id)
                tell(
                    session,
                    job,
                    "resuming",
                    f"attempt {who.attempt} is given checkpoint {good[0]} at /input-checkpoint",
                    attempt=who.attempt,
                )

        with ctx.gate.open():
            choice: dict[str, Any] = {"id": good[0], "manifest_id": ctx.store.put_manifest(good[1])} if good else {}
            if back:
                choice["put_back"] = {str(node): put_back.store(ctx, back, node) for node in range(attempt.num_nodes)}
            ctx.db.write(work)
        return choice


def _mounts(job: Job, resume: dict[str, Any]) -> list[Mount]:
    mounts = [Mount(**i) for i in job.inputs if not (resume and i["path"] == "/input-checkpoint")]
    if resume:
        mounts.append(Mount(path="/input-checkpoint", name=resume["id"], manifest_id=resume["manifest_id"]))
    return mounts


def _remember(ctx: Context, session: Session, who: AgentIdentity, request: JoinRequest) -> tuple[str, int] | None:
    """The rendezvous address once all nodes are here; else None."""
    attempt, node = _rows(session, who)
    job = session.get_one(Job, who.job_id)
    if attempt.fenced or attempt.state == AttemptState.ENDED or job.stop_requested_at is not None:
        raise Fenced()
    if NodeState(node.state).is_terminal:
        raise Fenced()
    _refuse_another(node, request)
    if node.state == NodeState.PENDING:
        node.state = NodeState.PREPARING.value
    node.pid, node.boot_id, node.host = request.pid, request.boot_id, request.host
    node.address, node.port = request.address, request.port
    engine_queue.settle(session, node, request.machine)
    ctx.queue.trust(node.machine)
    ctx.meter.hear(who.attempt_id, who.node)
    ledger.hear(session, ctx.meter, who.attempt_id, who.node)
    session.flush()
    gang = attempts.nodes_of(session, attempt)
    if any(n.address is None for n in gang):
        return None
    first = gang[0]
    # Nodes of one machine meet on loopback, whatever the machine calls itself.
    same_host = len({(n.host, n.boot_id) for n in gang}) == 1
    return ("127.0.0.1" if same_host else first.address or ""), first.port or 0


def _refuse_another(node: Node, request: JoinRequest) -> None:
    """Only the process that joined first is told again, as after a restart of the server.

    Not by `Fenced`: who hears that reports the end of the node.
    """
    claim = hash_token(request.process) if request.process else None
    if node.state != NodeState.PENDING:
        known = node.joined_by is not None or claim is not None
        same = claim == node.joined_by if known else (request.pid, request.boot_id) == (node.pid, node.boot_id)
        if not same:
            raise NotAllowedNow("Another process has joined as this node: its secrets are not handed out again.")
    node.joined_by = claim


def _differs(node: Node, request: BeatRequest) -> bool:
    known = NodeState(node.state)
    if known.is_terminal:
        return request.final and not node.final
    return request.state != known or request.paths != node.paths


def _apply(ctx: Context, session: Session, who: AgentIdentity, request: BeatRequest) -> BeatReply:
    attempt, node = _rows(session, who)
    node.final = node.final or request.final
    if _differs(node, request) and not NodeState(node.state).is_terminal:
        node.paths = request.paths
        if request.progress and not attempt.fenced:
            session.get_one(Job, who.job_id).progress = request.progress.model_dump(mode="json")
        if node.state != NodeState.RUNNING:
            put_back.note(session, attempt, node, request.put_back)
        if request.state is NodeState.EXITED:
            preflight_reports.note(session, attempt, request.preflight)
            attempts.node_ended(
                session,
                attempt,
                node,
                state=NodeState.EXITED,
                exit_code=request.exit_code,
                failed_rank=request.failed_rank,
                reason=request.reason,
                told=request.told,
            )
            ledger.end_node(session, ctx.meter, attempt.id, node.index, lease_s=ctx.settings.lease_s)
        elif request.state is NodeState.RUNNING and node.state != NodeState.RUNNING:
            attempts.node_running(session, attempt, node)
    return _reply(ctx, session, attempt)


def _reply(ctx: Context, session: Session, attempt: Attempt) -> BeatReply:
    asked = select(Job.stop_requested_at, Job.stop_reason, Lease).outerjoin(Lease, Lease.job_id == Job.id)
    stop_at, why, lease = session.execute(asked.where(Job.id == attempt.job_id)).one()
    left_s = lease_rows.left_s(lease) if lease else None
    reply = BeatReply(fenced=attempt.fenced, grace_s=ctx.settings.stop_grace_s, why=why, left_s=left_s)
    if stop_at is None:
        return reply
    wait_s = _TOGETHER_S - (utcnow() - stop_at).total_seconds() if attempt.num_nodes > 1 else 0.0
    return reply.model_copy(update={"beat_in_s": min(wait_s, _TOGETHER_S)} if wait_s > 0 else {"stop": True})


def _rows(session: Session, who: AgentIdentity) -> tuple[Attempt, Node]:
    return session.get_one(Attempt, who.attempt_id), session.get_one(Node, (who.attempt_id, who.node))


_progress_at: dict[str, float] = {}


def _note_progress(ctx: Context, who: AgentIdentity, progress: Progress) -> None:
    """Stored at most once a second per job: each write is an fsync."""
    now, job_id = time.monotonic(), who.job_id
    if now - _progress_at.get(job_id, 0.0) < _PROGRESS_EVERY_S:
        return
    with ctx.db.read() as session:
        same = session.scalar(select(Job.progress).where(Job.id == job_id)) == progress.model_dump(mode="json")
    if not same:
        ctx.orders.sign(who.attempt_id)
        _progress_at[job_id] = now
        jobs.set_progress(ctx, job_id, progress.model_dump(mode="json"))
