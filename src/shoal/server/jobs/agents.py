"""Requests and reports of agents. Most heartbeats change nothing and only read from the database."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.agents import (
    BEAT_INTERVAL_S,
    BeatReply,
    BeatRequest,
    JoinReply,
    JoinRequest,
    Mount,
    ReadyReply,
    ReadyRequest,
)
from shoal.core.errors import Fenced, NotAllowedNow, NotFound
from shoal.core.jobs import Progress, stop_grace_s
from shoal.core.schema import utcnow
from shoal.core.states import AttemptState, NodeState
from shoal.server.artifacts import checkpoints, peer_transfers, restore_paths
from shoal.server.billing import ledger
from shoal.server.context import Context
from shoal.server.engines import queue as engine_queue
from shoal.server.jobs import after, attempts, sandboxes
from shoal.server.jobs import service as jobs
from shoal.server.jobs.events import WARNING, record_event
from shoal.server.leases import lease_rows
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.leases import Lease
from shoal.server.models.sources import Source
from shoal.server.models.workspaces import Workspace
from shoal.server.people.secrets import open_secrets
from shoal.server.policy import AgentIdentity, hash_token
from shoal.server.pool import device_drains, device_gauges
from shoal.server.preflight import reports as preflight_reports
from shoal.store.manifest import chunk_hashes, dump_manifest

_PROGRESS_EVERY_S = 1.0
_TOGETHER_S = 1.25 * BEAT_INTERVAL_S
"""Seconds between a stop and the SIGTERM on several nodes. In this time every agent has sent a heartbeat, so all stop together;
a node stopped later would fail because its peers are gone."""


def join(ctx: Context, who: AgentIdentity, request: JoinRequest) -> JoinReply:
    """Record that a node has joined; once all nodes have, reply with everything the agent needs to start."""
    ctx.live.beat(who.attempt_id, who.node)  # first: an agent counts as heard even if the database is locked
    first = ctx.db.write(lambda session: _remember(ctx, session, who, request))
    peer_transfers.remember(ctx, who, request)
    if first is None:
        return JoinReply(ready=False)
    after.mount_outputs(ctx, who.job_id)
    resume = _choose_resume(ctx, who)
    with ctx.db.read() as session:
        job = session.get_one(Job, who.job_id)
        source = session.get_one(Source, job.source_id)
        workspace, spec = session.get_one(Workspace, job.workspace_id), job.spec
        num_nodes = session.get_one(Attempt, who.attempt_id).num_nodes
        mounts = _mounts(job, resume)
    lease, own = lease_rows.begin(ctx, who) or (None, {})
    return JoinReply(
        ready=True,
        num_nodes=num_nodes,
        entry=spec["entry"],
        accels=spec["accels"],
        launcher=spec["launcher"],
        allow_cpu=spec.get("allow_cpu", False),
        folder_mounts=spec.get("mounts", []),
        allow_torch_change=spec.get("allow_torch_change", False),
        one_device_per_worker=spec.get("one_device_per_worker", False),
        master_addr=first[0],
        master_port=first[1],
        source=ctx.store.get_manifest(source.manifest_id),
        mounts=mounts,
        env=spec["env"] | {"SHOAL_WORKSPACE": workspace.id},
        secrets=open_secrets(ctx, workspace.id, spec["secrets"])
        | {"SHOAL_JOB_TOKEN": read_token(ctx, who.attempt_id)}
        | own,
        lease=lease,
        neighbours=peer_transfers.of_mounts(ctx, who, workspace.id, mounts),
        put_back=restore_paths.of_node(resume, who.node, spec["env"]),
        is_distributed=spec["max_nodes"] * spec["accels"] > 1,
        sandbox=None if lease else sandboxes.requirements(ctx, spec),
        start_barrier=num_nodes > 1,
        device_wait_s=0.0 if ctx.private else ctx.settings.device_wait_s,
    )


def ready(ctx: Context, who: AgentIdentity, request: ReadyRequest) -> ReadyReply:
    """Record that a node is prepared; let the gang start once all its nodes are and node 0 has named a free port.

    The port is chosen last, so that data and packages that take minutes to fetch do not give others the time to take it.
    """
    with ctx.db.read() as session:
        attempt, _ = _rows(session, who)
        gang = attempts.nodes_of(session, attempt)
    # A node that runs was told to start; its agent announces itself no more.
    started = {n.index for n in gang if n.state not in (NodeState.PENDING, NodeState.PREPARING)}
    prepared = ctx.starts.arrive(who.attempt_id, who.node) | started
    if attempt.fenced or prepared != {n.index for n in gang}:
        return ReadyReply(go=False)
    port = ctx.starts.port(who.attempt_id) or (gang[0].port if 0 in started else None)
    if port is None and who.node == 0 and request.port is not None:
        # Stored before anybody is told, so that it outlasts a restart of the server.
        ctx.db.write(lambda session: _keep_port(session, who, request.port or 0))
        port = ctx.starts.set_port(who.attempt_id, request.port)
    if port is None:
        return ReadyReply(go=False, choose_port=who.node == 0)
    return ReadyReply(go=True, master_addr=_meeting_address(gang), master_port=port)


def _keep_port(session: Session, who: AgentIdentity, port: int) -> None:
    session.get_one(Node, (who.attempt_id, 0)).port = port


def read_token(ctx: Context, attempt_id: str) -> str:
    """Return the token with which an attempt's workers may read their workspace; valid until the attempt ends."""
    return "shoalj_" + ctx.vault.derive(f"read {attempt_id}")


def beat(ctx: Context, who: AgentIdentity, request: BeatRequest) -> BeatReply:
    ctx.live.beat(who.attempt_id, who.node)
    if not request.state.is_terminal:
        ctx.usage_clock.record_message(who.attempt_id, who.node)
    with ctx.db.read() as session:
        attempt, node = _rows(session, who)
        changed = _differs(node, request)
        reply = _reply(ctx, session, attempt)
        machine = node.machine
    stalled_s, said = ctx.live.machine_lag.update(who.attempt_id, who.node, request.stalled_s)
    if stalled_s:
        ctx.commands.excuse(who.attempt_id, stalled_s)
    if said:
        ctx.db.write(
            partial(device_gauges.note, attempt_id=who.attempt_id, node=who.node, notices=[said], kind=WARNING)
        )
        ctx.live.job_changed(who.job_id)
    if request.gpus:
        ctx.gauges.put(machine, request.gpus)
    for kind, texts in ((device_gauges.GPU_USE, request.notices), (WARNING, request.warnings)):
        if texts and ctx.gauges.are_new(who.attempt_id, who.node, texts, kind):
            ctx.db.write(
                partial(device_gauges.note, attempt_id=who.attempt_id, node=who.node, notices=texts, kind=kind)
            )
            ctx.live.job_changed(who.job_id)
    if reply.left_s is not None:  # a lease is not expected to show progress
        ctx.commands.record_progress(who.attempt_id)
    if changed and request.state is NodeState.EXITED and request.unkillable:
        device_drains.drain_stuck(ctx, who, request.unkillable)  # before another job can get the node's slots
    if changed:
        reply = ctx.db.write(lambda session: _apply(ctx, session, who, request), essential=True)
        ctx.live.job_changed(who.job_id, schedule=request.state.is_terminal)
    elif request.progress and not reply.fenced:
        _note_progress(ctx, who, request.progress)
    commands = ctx.commands.pending(who.attempt_id, who.node)
    return reply.model_copy(update={"commands": commands}) if commands else reply


def manifest(ctx: Context, who: AgentIdentity, manifest_id: str) -> bytes:
    """Return a manifest that the attempt mounts; any other is NotFound for this agent."""
    if manifest_id not in _readable(ctx, who):
        raise NotFound()
    return dump_manifest(ctx.store.get_manifest(manifest_id))


def chunk(ctx: Context, who: AgentIdentity, name: str) -> bytes:
    """Return a chunk of the attempt's source or mounts; any other is NotFound for this agent."""
    if name not in named_chunks(ctx, _readable(ctx, who)):
        raise NotFound()
    return ctx.store.get(name)


def _readable(ctx: Context, who: AgentIdentity) -> tuple[str, ...]:
    with ctx.db.read() as session:
        job = session.get_one(Job, who.job_id)
        resume = session.get_one(Attempt, who.attempt_id).resume or {}
        source = session.get_one(Source, job.source_id)
        mounted = (m.manifest_id for m in _mounts(job, resume))
        return (source.manifest_id, *mounted, *restore_paths.resumed_manifests(resume))


_hash_lock = threading.Lock()
_hash_cache: dict[tuple[str, ...], frozenset[str]] = {}


def named_chunks(ctx: Context, manifest_ids: tuple[str, ...]) -> frozenset[str]:
    """Return the chunks that these manifests name. Called for every chunk, so the last few results are cached."""
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
    """Return the checkpoint to resume from and the files to restore: chosen once for all nodes, every byte verified."""
    with _resume_lock:
        with ctx.db.read() as session:
            attempt = session.get_one(Attempt, who.attempt_id)
        if attempt.resume is not None:
            return attempt.resume
        good = checkpoints.newest_intact(ctx, who.job_id) if attempt.number > 1 else None
        back = restore_paths.choose(ctx, who.job_id) if good else []

        def work(session: Session) -> None:
            session.get_one(Attempt, who.attempt_id).resume = choice
            if good:
                job = session.get_one(Job, who.job_id)
                record_event(
                    session,
                    job,
                    "resuming",
                    f"attempt {who.attempt} is given checkpoint {good[0]} at /input-checkpoint",
                    attempt=who.attempt,
                )

        with ctx.gc_lock.open():
            choice: dict[str, Any] = {"id": good[0], "manifest_id": ctx.store.put_manifest(good[1])} if good else {}
            if back:
                choice["put_back"] = {
                    str(node): restore_paths.store(ctx, back, node) for node in range(attempt.num_nodes)
                }
            ctx.db.write(work)
        return choice


def _mounts(job: Job, resume: dict[str, Any]) -> list[Mount]:
    mounts = [Mount(**i) for i in job.inputs if not (resume and i["path"] == "/input-checkpoint")]
    if resume:
        mounts.append(Mount(path="/input-checkpoint", name=resume["id"], manifest_id=resume["manifest_id"]))
    return mounts


def _remember(ctx: Context, session: Session, who: AgentIdentity, request: JoinRequest) -> tuple[str, int] | None:
    """Store a node's process and address; return the rendezvous address once all nodes have joined, else None."""
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
    engine_queue.move_to_actual(session, node, request.machine)
    ctx.queue.trust(node.machine)
    ctx.usage_clock.record_message(who.attempt_id, who.node)
    ledger.record_message(session, ctx.usage_clock, who.attempt_id, who.node)
    session.flush()
    gang = attempts.nodes_of(session, attempt)
    if any(n.address is None for n in gang):
        return None
    return _meeting_address(gang), gang[0].port or 0


def _meeting_address(gang: list[Node]) -> str:
    """Return the address of node 0; loopback if all nodes are on one machine, whatever its host name resolves to."""
    same_host = len({(n.host, n.boot_id) for n in gang}) == 1
    return "127.0.0.1" if same_host else gang[0].address or ""


def _refuse_another(node: Node, request: JoinRequest) -> None:
    """Raise unless this is the process that joined first, which may join again, for example after a restart of the server.

    Does not raise `Fenced`, because an agent that receives it reports the end of the node.
    """
    claim = hash_token(request.process) if request.process else None
    if node.state != NodeState.PENDING:
        known = node.joined_by is not None or claim is not None
        same = claim == node.joined_by if known else (request.pid, request.boot_id) == (node.pid, node.boot_id)
        if not same:
            raise NotAllowedNow("Another process has already joined as this node; its secrets are not given out again.")
    node.joined_by = claim


def _differs(node: Node, request: BeatRequest) -> bool:
    known = NodeState(node.state)
    if known.is_terminal:
        return request.final and not node.final
    return request.state != known or (request.paths, request.sandbox) != (node.paths, node.sandbox)


def _apply(ctx: Context, session: Session, who: AgentIdentity, request: BeatRequest) -> BeatReply:
    attempt, node = _rows(session, who)
    node.final = node.final or request.final
    if _differs(node, request) and not NodeState(node.state).is_terminal:
        node.paths, node.sandbox = request.paths, request.sandbox
        if request.progress and not attempt.fenced:
            session.get_one(Job, who.job_id).progress = request.progress.model_dump(mode="json")
        if node.state != NodeState.RUNNING:
            restore_paths.note(session, attempt, node, request.put_back)
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
            ledger.end_node(session, ctx.usage_clock, attempt.id, node.index, timeout_s=ctx.settings.node_timeout_s)
        elif request.state is NodeState.RUNNING and node.state != NodeState.RUNNING:
            attempts.node_running(session, attempt, node)
    return _reply(ctx, session, attempt)


def _reply(ctx: Context, session: Session, attempt: Attempt) -> BeatReply:
    asked = select(Job.stop_requested_at, Job.stop_reason, Job.spec, Lease).outerjoin(Lease, Lease.job_id == Job.id)
    stop_at, why, spec, lease = session.execute(asked.where(Job.id == attempt.job_id)).one()
    left_s = lease_rows.left_s(lease) if lease else None
    grace_s = stop_grace_s(spec, ctx.settings.stop_grace_s)
    reply = BeatReply(fenced=attempt.fenced, grace_s=grace_s, why=why, left_s=left_s)
    if stop_at is None:
        return reply
    wait_s = _TOGETHER_S - (utcnow() - stop_at).total_seconds() if attempt.num_nodes > 1 else 0.0
    return reply.model_copy(update={"beat_in_s": min(wait_s, _TOGETHER_S)} if wait_s > 0 else {"stop": True})


def _rows(session: Session, who: AgentIdentity) -> tuple[Attempt, Node]:
    return session.get_one(Attempt, who.attempt_id), session.get_one(Node, (who.attempt_id, who.node))


_progress_at: dict[str, float] = {}


def _note_progress(ctx: Context, who: AgentIdentity, progress: Progress) -> None:
    """Store the progress, at most once a second per job, because each write is an fsync."""
    now, job_id = time.monotonic(), who.job_id
    if now - _progress_at.get(job_id, 0.0) < _PROGRESS_EVERY_S:
        return
    with ctx.db.read() as session:
        same = session.scalar(select(Job.progress).where(Job.id == job_id)) == progress.model_dump(mode="json")
    if not same:
        ctx.commands.record_progress(who.attempt_id)
        _progress_at[job_id] = now
        jobs.set_progress(ctx, job_id, progress.model_dump(mode="json"))
