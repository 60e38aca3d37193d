"""Leases: rent a share of a machine, extend it, release it. Its slots are held by a job that queues like any other."""

from __future__ import annotations

import secrets
from datetime import timedelta

from sqlalchemy import or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shoal.core.artifacts import Manifest, SourceCommit
from shoal.core.audit import AuditAction
from shoal.core.durations import duration
from shoal.core.errors import NameTaken, NotAllowedNow, Refused
from shoal.core.ids import new_id
from shoal.core.jobs import JobSpec
from shoal.core.leases import (
    MAX_TIME,
    Certificate,
    CertificateRequest,
    LeaseCreated,
    LeaseEnding,
    LeaseExtend,
    LeaseRequest,
    LeaseView,
)
from shoal.core.people import Role
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.server.artifacts import sources
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.jobs import service as jobs
from shoal.server.jobs.events import record_event
from shoal.server.leases import lease_rows, snapshots
from shoal.server.leases.keys import new_key
from shoal.server.models.jobs import Job
from shoal.server.models.leases import Lease
from shoal.server.models.workspaces import Member, Workspace
from shoal.server.policy import Access, Principal

ENTRY = ("python", "-m", "shoal.agent.lease.ssh_server")
_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"
_PASSWORD_LETTERS = 24
_SHOWN_AFTER_END = timedelta(days=1)


def rent(ctx: Context, access: Access, ask: LeaseRequest, *, host: str = "") -> LeaseCreated:
    """Queue a new lease; it starts when a slot is free. `host`: the client's name for this server, used in the view."""
    ctx.gateway.demand()
    if ask.password and not ctx.settings.ssh_passwords:
        raise Refused(
            "SSH passwords are disabled on this server; use an SSH key.",
            hint="shoal machine rent --ssh-key ~/.ssh/id_ed25519.pub (an admin can allow passwords: ssh_passwords = true)",
        )
    lease, password = _row(ctx, access, ask)
    spec = _spec(ctx, access, ask, lease.login)
    checked = jobs.check(ctx, access, spec)

    def work(session: Session) -> None:
        row = jobs.row(access.workspace_id, access.principal.email, spec.model_dump(mode="json"), checked)
        if ask.restore is not None:
            row["inputs"] = [*row["inputs"], snapshots.mount(session, access, ask.restore)]
        job = Job(**row | {"kind": "lease"}, id=lease.job_id)
        session.add(job)
        session.flush()
        session.add(lease)
        try:
            session.flush()
        except IntegrityError:
            raise NameTaken(
                f"There is already a lease '{lease.name}' in workspace '{access.workspace}'.",
                hint=f"choose another name, or: shoal machine release {lease.name}",
            ) from None
        record_event(session, job, "queued", f"rented by {access.principal.email}")
        record_action(session, AuditAction.LEASE_CREATE, lease.name, lease.id, workspace=access)

    lease_id, job_id = lease.id, lease.job_id
    ctx.db.write(work)
    ctx.live.job_changed(job_id, schedule=True)
    return LeaseCreated(**get(ctx, access, lease_id, host=host).model_dump(), password=password)


def list_leases(ctx: Context, access: Access, *, ended: bool = False, host: str = "") -> list[LeaseView]:
    """Return a workspace's leases, newest first: current ones and those that ended within a day; with `ended` all."""
    mine = select(Lease).where(Lease.workspace_id == access.workspace_id).order_by(Lease.id.desc())
    shown = mine if ended else mine.where(or_(Lease.ended_at.is_(None), Lease.ended_at > utcnow() - _SHOWN_AFTER_END))
    return lease_rows.views(ctx, host, lambda session: list(session.scalars(shown)))


def list_ending(ctx: Context, principal: Principal, *, within_s: float) -> list[LeaseEnding]:
    """Return a person's leases in all workspaces that end within `within_s` and that they may extend; earliest end first."""
    now = utcnow()
    soon = (
        select(Lease, Workspace, Member.role)
        .join(Workspace, Workspace.id == Lease.workspace_id)
        .join(Member, (Member.workspace_id == Lease.workspace_id) & (Member.user_id == Lease.user_id))
        .where(Lease.user_id == principal.user_id, Lease.ended_at.is_(None))
        .where(Lease.expires_at > now, Lease.expires_at <= now + timedelta(seconds=within_s))
        .order_by(Lease.expires_at)
    )
    with ctx.db.read() as session:
        found = session.execute(soon).all()
    return [
        LeaseEnding(
            id=lease.id,
            name=lease.name,
            workspace=workspace.name,
            workspace_id=workspace.id,
            expires_at=lease.expires_at or now,
            left_s=lease_rows.left_s(lease) or 0.0,
        )
        for lease, workspace, role in found
        if Role(role).covers(Role.MEMBER)
    ]


def get(ctx: Context, access: Access, name_or_id: str, *, host: str = "") -> LeaseView:
    return lease_rows.views(ctx, host, lambda session: [lease_rows.find(session, access, name_or_id)])[0]


def extend(ctx: Context, access: Access, name_or_id: str, ask: LeaseExtend, *, host: str = "") -> LeaseView:
    """Add time to a lease. Open sessions are not interrupted."""

    def work(session: Session) -> tuple[str, str]:
        lease = _live(session, access, name_or_id)
        left = lease_rows.left_s(lease)
        if (lease.time_s if left is None else left) + ask.time_s > MAX_TIME.total_seconds():
            raise Refused(
                f"A lease can have at most {duration(MAX_TIME.total_seconds())} left; '{lease.name}' already has "
                f"{duration(lease.time_s if left is None else left)}.",
                hint=f"shoal machine extend {lease.name} --time 1d",
            )
        if lease.expires_at is not None:
            lease.expires_at += timedelta(seconds=ask.time_s)
        lease.time_s, lease.reminded_s = lease.time_s + ask.time_s, None
        job = session.get_one(Job, lease.job_id)
        job.spec = {**job.spec, "expected_s": lease.time_s}
        record_event(session, job, "extended", f"extended by {duration(ask.time_s)} by {access.principal.email}")
        by = f"by {duration(ask.time_s)}"
        record_action(session, AuditAction.LEASE_EXTEND, lease.name, lease.id, workspace=access, detail=by)
        return lease.id, job.id

    lease_id, job_id = ctx.db.write(work)
    ctx.live.leases.set()
    ctx.live.job_changed(job_id)
    return get(ctx, access, lease_id, host=host)


def release(ctx: Context, access: Access, name_or_id: str, *, host: str = "") -> LeaseView:
    """End a lease before its time is up. Does nothing to a lease that has ended."""

    def work(session: Session) -> tuple[str, str]:
        lease = lease_rows.find(session, access, name_or_id)
        lease_rows.end(session, lease, f"released by {access.principal.email}")
        return lease.id, lease.job_id

    lease_id, job_id = ctx.db.write(work, essential=True)
    ctx.gateway.drop(lease_id)
    ctx.live.job_changed(job_id, schedule=True)
    return get(ctx, access, lease_id, host=host)


def restart(ctx: Context, access: Access, name_or_id: str, *, host: str = "") -> LeaseView:
    """Queue an offline lease again, preferably on its last machine. Its time is not extended."""

    def work(session: Session) -> tuple[str, str]:
        lease = _live(session, access, name_or_id)
        job = session.get_one(Job, lease.job_id)
        if job.state not in (JobState.FAILED, JobState.STOPPED):
            raise NotAllowedNow(
                f"Lease '{lease.name}' is not offline: its job is {job.state}.", hint=f"shoal machine ssh {lease.name}"
            )
        if last := lease_rows.last_nodes(session, [job.id]).get(job.id):
            job.spec = {**job.spec, "prefer": [last.machine]}
        jobs.reopen(session, job, f"restarted by {access.principal.email}")
        record_action(session, AuditAction.LEASE_RESTART, lease.name, lease.id, workspace=access)
        return lease.id, job.id

    lease_id, job_id = ctx.db.write(work)
    ctx.live.job_changed(job_id, schedule=True)
    return get(ctx, access, lease_id, host=host)


def certificate(ctx: Context, access: Access, name_or_id: str, ask: CertificateRequest) -> Certificate:
    """Return an SSH certificate for a lease; only for the person who rented it."""
    with ctx.db.read() as session:
        lease = _live(session, access, name_or_id)
    if lease.user_id != access.principal.user_id:
        raise Refused(
            f"Only the person who rented lease '{lease.name}' can open it.", hint="Rent your own: shoal machine rent"
        )
    line, ends = ctx.ssh_keys.certify(
        ask.public_key, login=lease.login, who=access.principal.email, until=lease.expires_at
    )
    return Certificate(certificate=line, expires_at=ends)


def _row(ctx: Context, access: Access, ask: LeaseRequest) -> tuple[Lease, str | None]:
    """Return the new row, and its password if one was requested."""
    name, lease_id, (private, public) = ask.name or f"box-{_letters(4)}", new_id("lease"), new_key()
    password = _letters(_PASSWORD_LETTERS) if ask.password else None
    lease = Lease(
        id=lease_id,
        workspace_id=access.workspace_id,
        job_id=new_id("job"),
        user_id=access.principal.user_id,
        name=name,
        login=f"{name}-{_letters(4)}",
        ssh_keys=list(dict.fromkeys(ask.ssh_keys)),
        password_hash=ctx.guards.passwords.hash(password) if password else None,
        host_key=ctx.vault.seal(private, bound_to=lease_id),
        host_public_key=public,
        time_s=ask.time_s,
        created_at=utcnow(),
    )
    return lease, password


def _spec(ctx: Context, access: Access, ask: LeaseRequest, login: str) -> JobSpec:
    """Return the job that holds the lease's slots. No automatic restarts: the person would find another machine."""
    return JobSpec(
        name=f"lease-{login}",
        entry=list(ENTRY),
        source_id=ask.source_id or _no_source(ctx, access),
        datasets=ask.datasets,
        accels=ask.accels,
        device=ask.device,
        gpu=ask.gpu,
        gpu_memory_gb=ask.gpu_memory_gb,
        labels=ask.labels,
        max_restarts=0,
        priority=ask.priority,
        prefer=ask.prefer,
        expected_s=ask.time_s,
    )


def _live(session: Session, access: Access, name_or_id: str) -> Lease:
    lease = lease_rows.find(session, access, name_or_id)
    if lease.ended_at is not None or (lease.expires_at is not None and lease.expires_at <= utcnow()):
        raise NotAllowedNow(f"Lease '{lease.name}' has ended.", hint="shoal machine rent")
    return lease


def _no_source(ctx: Context, access: Access) -> str:
    return sources.commit(ctx, access, SourceCommit(manifest=Manifest(files=[]))).id


def _letters(number: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(number))
