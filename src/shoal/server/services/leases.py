"""Leases: rent a share of a machine, prolong it, give it back. Its slots are held by a job, in the queue as any other."""

from __future__ import annotations

import secrets
from datetime import timedelta

from sqlalchemy import or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shoal.core.artifacts import Manifest, SourceCommit
from shoal.core.durations import duration
from shoal.core.errors import NameTaken, NotAllowedNow, Refused
from shoal.core.ids import new_id
from shoal.core.jobs import JobSpec
from shoal.core.leases import (
    MAX_TIME,
    Certificate,
    CertificateAsk,
    LeaseAsk,
    LeaseCreated,
    LeaseEnding,
    LeaseExtend,
    LeaseView,
)
from shoal.core.people import Role
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.server.context import Context
from shoal.server.models.jobs import Job
from shoal.server.models.leases import Lease
from shoal.server.models.people import Member, Workspace
from shoal.server.policy import Access, Principal
from shoal.server.services import jobs, lease_rows, snapshots, sources
from shoal.server.services.events import tell
from shoal.server.services.lease_keys import new_key

ENTRY = ("python", "-m", "shoal.agent.lease_server")
_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"
_PASSWORD_LETTERS = 24
_SHOWN_AFTER_END = timedelta(days=1)


def rent(ctx: Context, access: Access, ask: LeaseAsk, *, host: str = "") -> LeaseCreated:
    """`host`: what the person calls this server. The lease appears when there is a slot for it."""
    ctx.gateway.demand()
    if ask.password and not ctx.settings.ssh_passwords:
        raise Refused(
            "Leases are not opened by passwords here, only by keys.",
            hint="shoal machine rent --ssh-key ~/.ssh/id_ed25519.pub, or an admin may allow them: ssh_passwords = true",
        )
    lease, password = _row(ctx, access, ask)
    spec = _spec(ctx, access, ask, lease.login)
    checked = jobs.check(ctx, access, spec)

    def work(session: Session) -> None:
        row = jobs.row(access.workspace_id, access.principal.email, spec.model_dump(mode="json"), checked)
        if ask.restore is not None:
            row["inputs"] = [*row["inputs"], snapshots.mount(session, access, ask.restore)]
        job = Job(**row, id=lease.job_id)
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
        tell(session, job, "queued", f"rented by {access.principal.email}")

    lease_id, job_id = lease.id, lease.job_id
    ctx.db.write(work)
    ctx.live.job_changed(job_id, schedule=True)
    return LeaseCreated(**get(ctx, access, lease_id, host=host).model_dump(), password=password)


def list_leases(ctx: Context, access: Access, *, ended: bool = False, host: str = "") -> list[LeaseView]:
    """Newest first: those that have not ended, and with `ended` all that ever were."""
    mine = select(Lease).where(Lease.workspace_id == access.workspace_id).order_by(Lease.id.desc())
    shown = mine if ended else mine.where(or_(Lease.ended_at.is_(None), Lease.ended_at > utcnow() - _SHOWN_AFTER_END))
    return lease_rows.views(ctx, host, lambda session: list(session.scalars(shown)))


def list_ending(ctx: Context, principal: Principal, *, within_s: float) -> list[LeaseEnding]:
    """Those this person has rented and may still extend, in whatever workspace; the next to end first."""
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
    """Its sessions go on."""

    def work(session: Session) -> tuple[str, str]:
        lease = _live(session, access, name_or_id)
        left = lease_rows.left_s(lease)
        if (lease.time_s if left is None else left) + ask.time_s > MAX_TIME.total_seconds():
            raise Refused(
                f"No more than {duration(MAX_TIME.total_seconds())} can be left, and lease '{lease.name}' has "
                f"{duration(lease.time_s if left is None else left)}.",
                hint=f"shoal machine extend {lease.name} --time 1d",
            )
        if lease.expires_at is not None:
            lease.expires_at += timedelta(seconds=ask.time_s)
        lease.time_s, lease.reminded_s = lease.time_s + ask.time_s, None
        job = session.get_one(Job, lease.job_id)
        job.spec = {**job.spec, "expected_s": lease.time_s}
        tell(session, job, "extended", f"extended by {duration(ask.time_s)} by {access.principal.email}")
        return lease.id, job.id

    lease_id, job_id = ctx.db.write(work)
    ctx.live.leases.set()
    ctx.live.job_changed(job_id)
    return get(ctx, access, lease_id, host=host)


def release(ctx: Context, access: Access, name_or_id: str, *, host: str = "") -> LeaseView:
    """Give it back before its time; one that has ended stays ended."""

    def work(session: Session) -> tuple[str, str]:
        lease = lease_rows.find(session, access, name_or_id)
        lease_rows.end(session, lease, f"released by {access.principal.email}")
        return lease.id, lease.job_id

    lease_id, job_id = ctx.db.write(work, essential=True)
    ctx.gateway.drop(lease_id)
    ctx.live.job_changed(job_id, schedule=True)
    return get(ctx, access, lease_id, host=host)


def restart(ctx: Context, access: Access, name_or_id: str, *, host: str = "") -> LeaseView:
    """One that went offline, where it was if there is room. Its time goes on meanwhile."""

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
        return lease.id, job.id

    lease_id, job_id = ctx.db.write(work)
    ctx.live.job_changed(job_id, schedule=True)
    return get(ctx, access, lease_id, host=host)


def certificate(ctx: Context, access: Access, name_or_id: str, ask: CertificateAsk) -> Certificate:
    """For whoever rented it, and nobody else."""
    with ctx.db.read() as session:
        lease = _live(session, access, name_or_id)
    if lease.user_id != access.principal.user_id:
        raise Refused(
            f"Lease '{lease.name}' was rented by somebody else, who alone may open it.", hint="shoal machine rent"
        )
    line, ends = ctx.ssh_keys.certify(
        ask.public_key, login=lease.login, who=access.principal.email, until=lease.expires_at
    )
    return Certificate(certificate=line, expires_at=ends)


def _row(ctx: Context, access: Access, ask: LeaseAsk) -> tuple[Lease, str | None]:
    """The lease, and its password if it is to have one."""
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


def _spec(ctx: Context, access: Access, ask: LeaseAsk, login: str) -> JobSpec:
    """What holds its slots. Never started again by itself: its person would find another machine."""
    return JobSpec(
        name=f"lease-{login}",
        entry=list(ENTRY),
        source_id=ask.source_id or _no_source(ctx, access),
        datasets=ask.datasets,
        accels=ask.accels,
        device=ask.device,
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
