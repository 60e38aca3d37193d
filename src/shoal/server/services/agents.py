"""What agents ask and report. Most beats change nothing and touch the database only to read."""

from __future__ import annotations

import time

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.agents import BeatReply, BeatRequest, JoinReply, JoinRequest
from shoal.core.errors import Fenced, NotFound
from shoal.core.jobs import Progress
from shoal.core.states import AttemptState, NodeState
from shoal.server.context import Context
from shoal.server.models.artifacts import Source
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.policy import AgentIdentity
from shoal.server.services import attempts, jobs
from shoal.server.services.secrets import open_secrets

_PROGRESS_EVERY_S = 1.0


def join(ctx: Context, who: AgentIdentity, request: JoinRequest) -> JoinReply:
    """Remember the node; once the whole gang is here, hand out all there is to know."""
    ctx.live.beat(who.attempt_id, who.node)
    first = ctx.db.write(lambda session: _remember(session, who, request))
    if first is None:
        return JoinReply(ready=False)
    with ctx.db.read() as session:
        job = session.get_one(Job, who.job_id)
        source = session.get_one(Source, job.source_id)
        workspace_id, spec = job.workspace_id, job.spec
        num_nodes = session.get_one(Attempt, who.attempt_id).num_nodes
    return JoinReply(
        ready=True,
        num_nodes=num_nodes,
        entry=spec["entry"],
        accels=spec["accels"],
        launcher=spec["launcher"],
        master_addr=first[0],
        master_port=first[1],
        source=ctx.store.get_manifest(source.manifest_id),
        env=spec["env"],
        secrets=open_secrets(ctx, workspace_id, spec["secrets"]),
    )


def beat(ctx: Context, who: AgentIdentity, request: BeatRequest) -> BeatReply:
    ctx.live.beat(who.attempt_id, who.node)
    with ctx.db.read() as session:
        attempt, node = _rows(session, who)
        changed = _differs(node, request)
        reply = _reply(ctx, session, attempt)
    if changed:
        reply = ctx.db.write(lambda session: _apply(ctx, session, who, request))
        ctx.live.job_changed(who.job_id, schedule=request.state.is_terminal)
    if request.progress and not reply.fenced:
        _note_progress(ctx, who.job_id, request.progress)
    return reply


def chunk(ctx: Context, who: AgentIdentity, hash_: str) -> bytes:
    """Bytes of the attempt's own source; other chunks do not exist for this agent."""
    with ctx.db.read() as session:
        source = session.get_one(Source, session.get_one(Job, who.job_id).source_id)
    if not any(c.hash == hash_ for f in ctx.store.get_manifest(source.manifest_id).files for c in f.chunks):
        raise NotFound()
    return ctx.store.get(hash_)


def _remember(session: Session, who: AgentIdentity, request: JoinRequest) -> tuple[str, int] | None:
    """The rendezvous address once all nodes are here; else None."""
    attempt, node = _rows(session, who)
    job = session.get_one(Job, who.job_id)
    if attempt.fenced or attempt.state == AttemptState.ENDED or job.stop_requested_at is not None:
        raise Fenced()
    if node.state == NodeState.PENDING:
        node.state = NodeState.PREPARING.value
    node.pid, node.boot_id, node.host = request.pid, request.boot_id, request.host
    node.address, node.port = request.address, request.port
    session.flush()
    gang = attempts.nodes_of(session, attempt)
    if any(n.address is None for n in gang):
        return None
    first = gang[0]
    # Nodes of one machine meet on loopback, whatever the machine calls itself.
    same_host = len({(n.host, n.boot_id) for n in gang}) == 1
    return ("127.0.0.1" if same_host else first.address or ""), first.port or 0


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
        if request.state is NodeState.EXITED:
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
        elif request.state is NodeState.RUNNING and node.state != NodeState.RUNNING:
            attempts.node_running(session, attempt, node)
    return _reply(ctx, session, attempt)


def _reply(ctx: Context, session: Session, attempt: Attempt) -> BeatReply:
    stop_at = session.scalar(select(Job.stop_requested_at).where(Job.id == attempt.job_id))
    return BeatReply(fenced=attempt.fenced, stop=stop_at is not None, grace_s=ctx.settings.stop_grace_s)


def _rows(session: Session, who: AgentIdentity) -> tuple[Attempt, Node]:
    return session.get_one(Attempt, who.attempt_id), session.get_one(Node, (who.attempt_id, who.node))


_progress_at: dict[str, float] = {}


def _note_progress(ctx: Context, job_id: str, progress: Progress) -> None:
    """Stored at most once a second per job: each write is an fsync."""
    now = time.monotonic()
    if now - _progress_at.get(job_id, 0.0) < _PROGRESS_EVERY_S:
        return
    with ctx.db.read() as session:
        same = session.scalar(select(Job.progress).where(Job.id == job_id)) == progress.model_dump(mode="json")
    if not same:
        _progress_at[job_id] = now
        jobs.set_progress(ctx, job_id, progress.model_dump(mode="json"))
