"""Shells inside running jobs: the agent connects to the SSH gateway, and people come in through it."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.attach import AttachFetch, AttachInstructions, AttachRequest, AttachView
from shoal.core.audit import AuditAction
from shoal.core.commands import Command
from shoal.core.errors import NotAllowedNow, NotFound
from shoal.core.states import AttemptState, NodeState
from shoal.server import lookup
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.jobs.attach_sessions import AttachEndpoint
from shoal.server.jobs.events import record_event
from shoal.server.leases.keys import public_line
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.leases import Lease
from shoal.server.policy import Access, AgentIdentity
from shoal.server.pool.cluster import host_of

_AGAIN_S = 15.0
"""Seconds after which an agent that has not connected is asked again."""


@dataclass(frozen=True, slots=True)
class AttachTarget:
    """Node of a running job that people can attach to."""

    job: Job
    attempt: Attempt
    endpoint: AttachEndpoint
    is_ready: bool
    """False until the agent, which has been asked to, has connected to the gateway."""


def request_shell(
    ctx: Context, access: Access, name_or_id: str, request: AttachRequest, *, host: str = ""
) -> AttachView:
    """Request a shell on a node. Returns the same login for the same key, so clients can call it until it is ready."""
    found = find_target(ctx, access, name_or_id, request.node)
    login = f"attach-{hashlib.sha256(f'{found.endpoint.id} {request.public_key}'.encode()).hexdigest()[:16]}"
    if ctx.attached.admit(found.endpoint, login, request.public_key):
        record_attached(ctx, found, f"{access.principal.email} attached to node {request.node}")
    return AttachView(
        login=login,
        host=ctx.gateway.name_for(host),
        port=ctx.gateway.port or 0,
        host_key=public_line(ctx.ssh_keys.host),
        is_ready=found.is_ready,
    )


def find_target(ctx: Context, access: Access, name_or_id: str, node: int) -> AttachTarget:
    """Return the access to a node of a running job; asks its agent to connect if it has not."""
    ctx.gateway.demand()
    with ctx.db.read() as session:
        job = lookup.job(session, access, name_or_id)
        if lease := session.scalar(select(Lease.name).where(Lease.job_id == job.id)):
            raise NotAllowedNow(
                f"'{job.name}' is a rented machine, not a training job.", hint=f"shoal machine ssh {lease}"
            )
        attempt = _running(session, job, node)
        machine = session.get_one(Node, (attempt.id, node)).machine
    ctx.gateway.listen_at(next((host_of(m.url) for m in ctx.pool.machines() if m.name == machine), ""))
    endpoint = ctx.attached.endpoint(attempt.id, node, job.name, ctx.ssh_keys)
    is_ready = ctx.gateway.is_connected(endpoint.id)
    if not is_ready and time.monotonic() - endpoint.asked_at > _AGAIN_S:
        endpoint.asked_at = time.monotonic()
        ctx.commands.send(attempt.id, Command.ATTACH)
    return AttachTarget(job, attempt, endpoint, is_ready)


def record_attached(ctx: Context, way: AttachTarget, text: str) -> None:
    def work(session: Session) -> None:
        job = session.get_one(Job, way.job.id)
        record_event(session, job, "attached", text, attempt=way.attempt.number)
        record_action(session, AuditAction.JOB_ATTACH, job.name, job.id, workspace=job.workspace_id)

    ctx.db.write(work)
    ctx.live.job_changed(way.job.id)


def fetch(ctx: Context, who: AgentIdentity, request: AttachFetch) -> AttachInstructions:
    """Return the keys and the gateway's port to an agent that was asked to connect."""
    command = ctx.commands.answered(request.order, who.attempt_id, who.node)
    endpoint = ctx.attached.known(who.attempt_id, who.node)
    if command is None or endpoint is None:
        raise NotFound("There is no open attach request for this node.")
    server = {"host_key": endpoint.private_key, "keys": [public_line(ctx.ssh_keys.client)]}
    return AttachInstructions(
        gateway_port=ctx.gateway.port or 0,
        gateway_key=public_line(ctx.ssh_keys.host),
        public_key=endpoint.public_key,
        server=json.dumps(server),
    )


def _running(session: Session, job: Job, node: int) -> Attempt:
    newest = select(Attempt).where(Attempt.job_id == job.id, Attempt.state != AttemptState.ENDED.value)
    attempt = session.scalars(newest.order_by(Attempt.number.desc())).first()
    where = session.get(Node, (attempt.id, node)) if attempt else None
    if attempt is not None and where is None:
        raise NotFound(
            f"Job '{job.name}' has no node {node}; it runs on {attempt.num_nodes}, counted from 0.",
            hint=f"shoal training attach {job.name} --node 0",
        )
    if attempt is None or where is None or where.state != NodeState.RUNNING.value:
        raise NotAllowedNow(
            f"Job '{job.name}' is {job.state}; only a running job can be attached to.",
            hint=f"shoal training inspect {job.name}",
        )
    return attempt
