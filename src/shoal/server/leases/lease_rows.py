"""Leases in the database: find, show and end them; and the data about them that the gateway and the agents need."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.agent.lease.encryption import KEY_BYTES
from shoal.agent.wire import GATEWAY_MARK
from shoal.core.agents import LeaseInstructions
from shoal.core.audit import AuditAction
from shoal.core.errors import NotFound, Refused
from shoal.core.leases import LeaseStatus, LeaseView
from shoal.core.names import did_you_mean
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.jobs.service import request_stop
from shoal.server.leases.keys import public_line
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.leases import Lease
from shoal.server.models.users import User
from shoal.server.policy import Access, AgentIdentity, hash_token
from shoal.server.pool.cluster import host_of

SERVER_ENV = "SHOAL_LEASE_SERVER"
"""Environment variable with the host key and authorized keys of a lease's SSH server, as JSON."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Credentials that open a lease (or a job's SSH session), as the gateway needs them."""

    lease_id: str
    login: str
    name: str
    ssh_keys: frozenset[str]
    password_hash: str | None
    host_public_key: str
    expires_at: datetime


def find(session: Session, access: Access, name_or_id: str) -> Lease:
    """Return a lease by name, id or login. Of several with one name: the one that has not ended, else the newest."""
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
    """Mark a lease as ended and request its job to stop. The callers close its sessions; the scheduler stops its processes."""
    if lease.ended_at is not None:
        return
    lease.ended_at, lease.end_reason = utcnow(), reason
    record_action(session, AuditAction.LEASE_END, lease.name, lease.id, workspace=lease.workspace_id, detail=reason)
    request_stop(session, session.get_one(Job, lease.job_id), reason, JobState.STOPPED)


def opening(ctx: Context, login: str) -> Opening | None:
    """Return the credentials of a login: of a lease, or of a running job with an SSH session.

    None if there is no such login, the lease has ended, or its owner's account is disabled.
    """
    if attached := ctx.attached.by_login(login):
        endpoint, key, until = attached
        return Opening(endpoint.id, login, endpoint.job, frozenset([key]), None, endpoint.public_key, until)
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
    """Return a lease's login and its public host key."""
    with ctx.db.read() as session:
        lease = session.get(Lease, lease_id)
    if lease is None:
        raise NotFound(f"There is no lease {lease_id}.")
    return lease.login, lease.host_public_key


def of_agent(ctx: Context, token: str) -> str | None:
    """Return the id of the lease (or of the job's SSH session) that an agent's token belongs to.

    None if its attempt is over.
    """
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
    endpoint = ctx.attached.known(node.attempt_id, node.index) if node else None
    return endpoint.id if endpoint else None


def begin(ctx: Context, who: AgentIdentity) -> tuple[LeaseInstructions, dict[str, str]] | None:
    """Return an agent's instructions for a lease and the environment of its SSH server; None if the job is not a lease.

    The first call starts the lease's time.
    """

    def work(session: Session) -> tuple[Lease, str] | None:
        lease = session.scalar(select(Lease).where(Lease.job_id == who.job_id))
        if lease is None:
            return None
        if not lease.host_key:
            raise Refused(f"Lease '{lease.name}' has ended, and its keys were destroyed.")
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
    private = ctx.vault.open(lease.host_key, bound_to=lease.id)
    ctx.live.leases.set()
    gateway, keys = ctx.gateway, ctx.ssh_keys
    gateway.listen_at(next((host_of(m.url) for m in ctx.pool.machines() if m.name == machine), ""))
    order = LeaseInstructions(
        id=lease.id,
        login=lease.login,
        left_s=left_s(lease) or 0.0,
        gateway_port=gateway.port or 0,
        gateway_key=public_line(keys.host),
        least=ctx.settings.lease_sandbox or ("S0" if ctx.private else "S3"),
        disk_mb=ctx.settings.lease_disk_gb << 10,
        volume_key=volume_key(lease.id, private).hex(),
        egress=ctx.settings.lease_egress,
        direct=ctx.settings.ssh_direct,
    )
    own = {
        "host_key": private,
        "keys": [
            f"{GATEWAY_MARK} {public_line(keys.client)}",
            *lease.ssh_keys,
            f'cert-authority,principals="{lease.login}" {public_line(keys.authority)}',
        ],
    }
    return order, {SERVER_ENV: json.dumps(own)}


def volume_key(lease_id: str, host_key: str) -> bytes:
    """Return the key of a lease's volume. It is derived from the lease's private host key, and destroyed with it."""
    return HKDF(hashes.SHA512(), KEY_BYTES, lease_id.encode(), b"shoal lease volume").derive(host_key.encode())


def destroy_keys(ctx: Context) -> None:
    """Destroy the keys of leases that have ended, as soon as nothing of them runs: whatever is left of their volumes on any
    machine can then no longer be read."""
    over = [state.value for state in JobState if state.is_terminal]
    ended = (
        select(Lease)
        .join(Job, Job.id == Lease.job_id)
        .where(Lease.ended_at.is_not(None), Lease.host_key != b"", Job.state.in_(over))
    )
    with ctx.db.read() as session:
        if session.scalar(ended.limit(1)) is None:
            return

    def work(session: Session) -> None:
        for lease in session.scalars(ended):
            lease.host_key = b""

    ctx.db.write(work, essential=True)


def left_s(lease: Lease) -> float | None:
    """Return the remaining seconds; None if the lease's time has not begun."""
    if lease.ended_at is not None:
        return 0.0
    return None if lease.expires_at is None else max(0.0, (lease.expires_at - utcnow()).total_seconds())


def views(ctx: Context, host: str, choose: Callable[[Session], list[Lease]]) -> list[LeaseView]:
    """Return the views of the leases that `choose` selects; `host` is the client's name for this server."""
    with ctx.db.read() as session:
        leases = choose(session)
        jobs: dict[str, Job] = {}
        for part in in_parts(lease.job_id for lease in leases):
            jobs |= {job.id: job for job in session.scalars(select(Job).where(Job.id.in_(part)))}
        nodes = last_nodes(session, jobs)
        return [_view(ctx, lease, jobs[lease.job_id], nodes.get(lease.job_id), host) for lease in leases]


def last_nodes(session: Session, job_ids: Iterable[str]) -> dict[str, Node]:
    """Return each job's current or last node by job id; jobs that never ran are left out."""
    every = select(Attempt.job_id, Node).join(Node, Node.attempt_id == Attempt.id).order_by(Attempt.number)
    found: dict[str, Node] = {}
    for part in in_parts(job_ids):
        found |= dict(session.execute(every.where(Attempt.job_id.in_(part))).all())
    return found


def _view(ctx: Context, lease: Lease, job: Job, node: Node | None, host: str) -> LeaseView:
    status, (direct_host, direct_port) = (
        _status(ctx, lease, job),
        ctx.gateway.direct_addresses.get(lease.id, (None, None)),
    )
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
