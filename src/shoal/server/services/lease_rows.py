"""Leases in the database: found, shown, ended; and what the gateway and agents are told of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.agent.wire import GATEWAY_MARK
from shoal.core.agents import LeaseOrder
from shoal.core.errors import NotFound
from shoal.core.leases import LeaseStatus, LeaseView
from shoal.core.names import did_you_mean
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.leases import Lease
from shoal.server.models.people import User
from shoal.server.policy import Access, AgentIdentity, hash_token
from shoal.server.pool import host_of
from shoal.server.services.jobs import request_stop
from shoal.server.services.lease_keys import public_line

SERVER_ENV = "SHOAL_LEASE_SERVER"
"""By which a lease's own SSH server is told what it is to be."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What opens a lease, as the gateway sees it."""

    lease_id: str
    login: str
    name: str
    ssh_keys: frozenset[str]
    password_hash: str | None
    host_public_key: str
    expires_at: datetime


def find(session: Session, access: Access, name_or_id: str) -> Lease:
    """By id or login, or by name: the one that has not ended, else the newest."""
    mine = select(Lease).where(Lease.workspace_id == access.workspace_id)
    found = session.scalars(mine.where(Lease.name == name_or_id).order_by(Lease.ended_at.is_not(None), Lease.id.desc()))
    lease = found.first() or session.scalar(mine.where((Lease.id == name_or_id) | (Lease.login == name_or_id)))
    if lease is None:
        names = session.scalars(select(Lease.name).where(Lease.workspace_id == access.workspace_id))
        raise NotFound(
            f"There is no lease '{name_or_id}' in workspace '{access.workspace}'.{did_you_mean(name_or_id, names)}",
            hint="shoal machine list",
        )
    return lease


def end(session: Session, lease: Lease, reason: str) -> None:
    """Now. What is to be closed and killed is done by others, once this is durable."""
    if lease.ended_at is not None:
        return
    lease.ended_at, lease.end_reason = utcnow(), reason
    request_stop(session, session.get_one(Job, lease.job_id), reason, JobState.STOPPED)


def opening(ctx: Context, login: str) -> Opening | None:
    """None if there is no such lease, it is over, or its person may not sign in any more. Running jobs that are attached to too."""
    if attached := ctx.attached.by_login(login):
        door, key, until = attached
        return Opening(door.id, login, door.job, frozenset([key]), None, door.public_key, until)
    wanted = select(Lease).join(User, User.id == Lease.user_id).where(Lease.login == login, User.disabled_at.is_(None))
    with ctx.db.read() as session:
        lease = session.scalar(wanted.where(Lease.ended_at.is_(None)))
    if lease is None or lease.expires_at is None or lease.expires_at <= utcnow():
        return None
    return Opening(
        lease_id=lease.id,
        login=lease.login,
        name=lease.name,
        ssh_keys=frozenset(lease.ssh_keys),
        password_hash=lease.password_hash,
        host_public_key=lease.host_public_key,
        expires_at=lease.expires_at,
    )


def identity(ctx: Context, lease_id: str) -> tuple[str, str]:
    """Its login, and the public key it is known by."""
    with ctx.db.read() as session:
        lease = session.get(Lease, lease_id)
    if lease is None:
        raise NotFound(f"There is no lease {lease_id}.")
    return lease.login, lease.host_public_key


def of_agent(ctx: Context, token: str) -> str | None:
    """The lease whose node this agent speaks for, as long as its attempt lasts; or the way into its job, if somebody attaches."""
    asked = (
        select(Lease.id)
        .join(Attempt, Attempt.job_id == Lease.job_id)
        .join(Node, Node.attempt_id == Attempt.id)
        .where(Node.token_hash == hash_token(token), Attempt.fenced.is_(False), Lease.ended_at.is_(None))
    )
    with ctx.db.read() as session:
        if lease_id := session.scalar(asked):
            return lease_id
        wanted = select(Node).join(Attempt, Attempt.id == Node.attempt_id).where(Attempt.fenced.is_(False))
        node = session.scalar(wanted.where(Node.token_hash == hash_token(token)))
    door = ctx.attached.known(node.attempt_id, node.index) if node else None
    return door.id if door else None


def take_up(ctx: Context, who: AgentIdentity) -> tuple[LeaseOrder, dict[str, str]] | None:
    """For the agent whose node is a lease's: its order, and the environment of the SSH server. Its time begins with the first."""

    def work(session: Session) -> tuple[Lease, str] | None:
        lease = session.scalar(select(Lease).where(Lease.job_id == who.job_id))
        if lease is None:
            return None
        if lease.expires_at is None:
            lease.expires_at = utcnow() + timedelta(seconds=lease.time_s)
        return lease, session.get_one(Node, (who.attempt_id, who.node)).machine

    with ctx.db.read() as session:
        if session.scalar(select(Lease.id).where(Lease.job_id == who.job_id)) is None:
            return None
    taken = ctx.db.write(work)
    if taken is None:
        return None
    lease, machine = taken
    ctx.live.leases.set()
    gateway, keys = ctx.gateway, ctx.ssh_keys
    gateway.listen_at(next((host_of(m.url) for m in ctx.pool.machines() if m.name == machine), ""))
    order = LeaseOrder(
        id=lease.id,
        login=lease.login,
        left_s=left_s(lease) or 0.0,
        gateway_port=gateway.port or 0,
        gateway_key=public_line(keys.host),
        least=ctx.settings.lease_sandbox or ("S0" if ctx.private else "S3"),
        disk_mb=ctx.settings.lease_disk_gb << 10,
        egress=ctx.settings.lease_egress,
        direct=ctx.settings.ssh_direct,
    )
    own = {
        "host_key": ctx.vault.open(lease.host_key, bound_to=lease.id),
        "keys": [
            f"{GATEWAY_MARK} {public_line(keys.client)}",
            *lease.ssh_keys,
            f'cert-authority,principals="{lease.login}" {public_line(keys.authority)}',
        ],
    }
    return order, {SERVER_ENV: json.dumps(own)}


def left_s(lease: Lease) -> float | None:
    """None before its time has begun."""
    if lease.ended_at is not None:
        return 0.0
    return None if lease.expires_at is None else max(0.0, (lease.expires_at - utcnow()).total_seconds())


def views(ctx: Context, host: str, choose: Callable[[Session], list[Lease]]) -> list[LeaseView]:
    with ctx.db.read() as session:
        leases = choose(session)
        jobs: dict[str, Job] = {}
        for part in in_parts(lease.job_id for lease in leases):
            jobs |= {job.id: job for job in session.scalars(select(Job).where(Job.id.in_(part)))}
        nodes = last_nodes(session, jobs)
        return [_view(ctx, lease, jobs[lease.job_id], nodes.get(lease.job_id), host) for lease in leases]


def last_nodes(session: Session, job_ids: Iterable[str]) -> dict[str, Node]:
    """By job: where it is, or was last; not those that never ran."""
    every = select(Attempt.job_id, Node).join(Node, Node.attempt_id == Attempt.id).order_by(Attempt.number)
    found: dict[str, Node] = {}
    for part in in_parts(job_ids):
        found |= dict(session.execute(every.where(Attempt.job_id.in_(part))).all())
    return found


def _view(ctx: Context, lease: Lease, job: Job, node: Node | None, host: str) -> LeaseView:
    status, (direct_host, direct_port) = _status(ctx, lease, job), ctx.gateway.doors.get(lease.id, (None, None))
    return LeaseView(
        id=lease.id,
        name=lease.name,
        status=status,
        login=lease.login,
        host=ctx.gateway.name_for(host),
        port=ctx.gateway.port,
        host_key=public_line(ctx.ssh_keys.host),
        own_host_key=lease.host_public_key,
        direct_host=direct_host,
        direct_port=direct_port,
        job=job.name,
        accels=job.spec["accels"],
        machine=node.machine if node else None,
        sandbox=node.paths if node else None,
        waiting=ctx.live.waiting.get(job.id) if status is LeaseStatus.WAITING else None,
        reason=lease.end_reason or (job.reason if status is LeaseStatus.OFFLINE else None),
        created_by=job.created_by,
        created_at=lease.created_at,
        started_at=job.started_at,
        expires_at=lease.expires_at,
        ended_at=lease.ended_at,
        left_s=left_s(lease),
        has_password=lease.password_hash is not None,
    )


def _status(ctx: Context, lease: Lease, job: Job) -> LeaseStatus:
    if lease.ended_at is not None:
        return LeaseStatus.ENDED
    if job.state == JobState.QUEUED:
        return LeaseStatus.WAITING
    if JobState(job.state).is_terminal:
        return LeaseStatus.OFFLINE
    return LeaseStatus.RUNNING if ctx.gateway.is_connected(lease.id) else LeaseStatus.STARTING
