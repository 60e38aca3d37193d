"""A shell inside a running job: its agent is asked to open the way, people come by the gateway."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.attach import AttachAsk, AttachFetch, AttachOrder, AttachView
from shoal.core.errors import NotAllowedNow, NotFound
from shoal.core.states import AttemptState, NodeState
from shoal.server.attached import Door
from shoal.server.context import Context
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.leases import Lease
from shoal.server.policy import Access, AgentIdentity
from shoal.server.pool import host_of
from shoal.server.services import find
from shoal.server.services.events import tell
from shoal.server.services.lease_keys import public_line

DO = "attach"
_AGAIN_S = 15.0
"""An agent that has not opened the way by then is told once more."""


@dataclass(frozen=True, slots=True)
class Way:
    """Into a node of a job that runs."""

    job: Job
    attempt: Attempt
    door: Door
    is_ready: bool
    """False until its agent has come; it has been told to."""


def ask(ctx: Context, access: Access, name_or_id: str, request: AttachAsk, *, host: str = "") -> AttachView:
    """The same answer for the same key, so that one can ask until it is ready."""
    found = way(ctx, access, name_or_id, request.node)
    login = f"attach-{hashlib.sha256(f'{found.door.id} {request.public_key}'.encode()).hexdigest()[:16]}"
    if ctx.attached.admit(found.door, login, request.public_key):
        tell_attached(ctx, found, f"{access.principal.email} attaches to node {request.node}")
    return AttachView(
        login=login,
        host=ctx.gateway.name_for(host),
        port=ctx.gateway.port or 0,
        host_key=public_line(ctx.ssh_keys.host),
        is_ready=found.is_ready,
    )


def way(ctx: Context, access: Access, name_or_id: str, node: int) -> Way:
    ctx.gateway.demand()
    with ctx.db.read() as session:
        job = find.job(session, access, name_or_id)
        if lease := session.scalar(select(Lease.name).where(Lease.job_id == job.id)):
            raise NotAllowedNow(f"Job '{job.name}' is a lease's.", hint=f"shoal machine ssh {lease}")
        attempt = _running(session, job, node)
        machine = session.get_one(Node, (attempt.id, node)).machine
    ctx.gateway.listen_at(next((host_of(m.url) for m in ctx.pool.machines() if m.name == machine), ""))
    door = ctx.attached.door(attempt.id, node, job.name, ctx.ssh_keys)
    is_ready = ctx.gateway.is_connected(door.id)
    if not is_ready and time.monotonic() - door.asked_at > _AGAIN_S:
        door.asked_at = time.monotonic()
        ctx.orders.ask(attempt.id, DO)
    return Way(job, attempt, door, is_ready)


def tell_attached(ctx: Context, way: Way, text: str) -> None:
    ctx.db.write(
        lambda session: tell(session, session.get_one(Job, way.job.id), "attached", text, attempt=way.attempt.number)
    )
    ctx.live.job_changed(way.job.id)


def fetch(ctx: Context, who: AgentIdentity, request: AttachFetch) -> AttachOrder:
    """For the agent that was told to open the way."""
    order = ctx.orders.answered(request.order, who.attempt_id, who.node)
    door = ctx.attached.known(who.attempt_id, who.node)
    if order is None or door is None:
        raise NotFound("Nobody attaches to this node.")
    server = {"host_key": door.private_key, "keys": [public_line(ctx.ssh_keys.client)]}
    return AttachOrder(
        gateway_port=ctx.gateway.port or 0,
        gateway_key=public_line(ctx.ssh_keys.host),
        public_key=door.public_key,
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
