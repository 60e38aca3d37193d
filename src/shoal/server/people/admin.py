"""Actions of admins: manage accounts, and change limits without a restart. A server never loses its last admin."""

from __future__ import annotations

import threading
from dataclasses import asdict, replace
from urllib.parse import urlsplit

from sqlalchemy import delete, func, or_, select
from sqlalchemy.orm import Session

from shoal.core.admin import AccountChange, AccountCreate, AccountView, LimitsChange, LimitsView, PasswordReset
from shoal.core.audit import AuditAction
from shoal.core.errors import InvalidSpec, NameTaken, NotAllowedNow, NotFound
from shoal.core.people import OWNER_EMAIL
from shoal.core.schema import utcnow
from shoal.core.settings import ServerSettings
from shoal.server.audit import settings_log
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.leases import lease_rows
from shoal.server.models.jobs import Job
from shoal.server.models.leases import Lease
from shoal.server.models.users import SessionRow, User
from shoal.server.models.workspaces import Member
from shoal.server.people.accounts import add_user
from shoal.server.policy import Principal

_JOBS = select(func.count()).where(Job.created_by == User.email).scalar_subquery()
_WORKSPACES = select(func.count()).where(Member.user_id == User.id).scalar_subquery()
_ACCOUNTS = select(User, _WORKSPACES, _JOBS)
_saving = threading.Lock()


def list_accounts(ctx: Context) -> list[AccountView]:
    with ctx.db.read() as session:
        return [_view(*row) for row in session.execute(_ACCOUNTS.order_by(User.email))]


def create_account(ctx: Context, body: AccountCreate) -> AccountView:
    if not body.name.isprintable():
        raise InvalidSpec("A name cannot contain control characters.")
    hashed = ctx.guards.passwords.hash(body.password)

    def work(session: Session) -> AccountView:
        if session.scalar(select(User.id).where(User.email == body.email)):
            raise NameTaken(f"There already is an account for {body.email}.")
        user = add_user(session, email=body.email, name=body.name, password_hash=hashed, is_admin=body.is_admin)
        return _view(user, 1, 0)

    return ctx.db.write(work)


def change_account(ctx: Context, principal: Principal, id_or_email: str, body: AccountChange) -> AccountView:
    """Change whether an account is an admin, or disabled.

    When an account is disabled its sessions and leases end and its keys are refused; its jobs keep running.
    """
    ended: list[tuple[str, str]] = []

    def work(session: Session) -> AccountView:
        ended.clear()
        user = _find(session, id_or_email)
        if body.disabled and user.id == principal.user_id:
            raise NotAllowedNow("You cannot disable the account you are using.")
        if body.disabled or body.is_admin is False:
            _check_admin_remains(ctx, session, user)
        if body.is_admin is not None and body.is_admin != user.is_admin:
            user.is_admin = body.is_admin
            promoted = AuditAction.ACCOUNT_PROMOTE if body.is_admin else AuditAction.ACCOUNT_DEMOTE
            record_action(session, promoted, user.email, user.id)
        if body.disabled is not None and body.disabled != (user.disabled_at is not None):
            disabled = AuditAction.ACCOUNT_DISABLE if body.disabled else AuditAction.ACCOUNT_ENABLE
            record_action(session, disabled, user.email, user.id)
        if body.disabled is not None:
            user.disabled_at = (user.disabled_at or utcnow()) if body.disabled else None
        if body.disabled:
            session.execute(delete(SessionRow).where(SessionRow.user_id == user.id))
            for lease in session.scalars(select(Lease).where(Lease.user_id == user.id, Lease.ended_at.is_(None))):
                lease_rows.end(session, lease, f"the account of {user.email} was disabled")
                ended.append((lease.id, lease.job_id))
        session.flush()
        return _read(session, user.id)

    view = ctx.db.write(work, essential=True)
    for lease_id, job_id in ended:
        ctx.gateway.drop(lease_id)
        ctx.live.job_changed(job_id, schedule=True)
    return view


def reset_password(ctx: Context, id_or_email: str, body: PasswordReset) -> AccountView:
    """Set a new password for a person who has lost theirs, and end all their sessions."""
    hashed = ctx.guards.passwords.hash(body.password)

    def work(session: Session) -> AccountView:
        user = _find(session, id_or_email)
        if user.email == OWNER_EMAIL:
            raise NotAllowedNow("The owner of a private server signs in with a key file and has no password.")
        user.password_hash = hashed
        session.execute(delete(SessionRow).where(SessionRow.user_id == user.id))
        record_action(session, AuditAction.ACCOUNT_RESET_PASSWORD, user.email, user.id)
        session.flush()
        return _read(session, user.id)

    return ctx.db.write(work)


def limits(ctx: Context) -> LimitsView:
    values = asdict(ctx.settings)
    known = {name: values.pop(name) for name in LimitsChange.model_fields}
    # The URLs of the store and the mail server may contain credentials.
    values["smtp_url"] = urlsplit(values["smtp_url"]).hostname or ""
    values["store"] = values["store"].partition("?")[0] or "the data directory"
    values["slots"] = "auto" if values["slots"] is None else values["slots"] or "none"
    return LimitsView(**known, lease_s=ctx.settings.node_timeout_s, fixed=values)


def change_limits(ctx: Context, body: LimitsChange) -> LimitsView:
    """Apply new limits to the running server and write them to settings.toml."""
    wanted = body.model_dump(exclude_none=True)
    with _saving:
        before = asdict(ctx.settings)
        replace(ServerSettings.stored(ctx.layout), **wanted).save(ctx.layout)
        ctx.settings = replace(ctx.settings, **wanted)
        changed = {name: value for name, value in asdict(ctx.settings).items() if value != before[name]}
        # The file first, the entry second: after a crash in between, the next start finds the change and records it.
        settings_log.record_limits(ctx, changed)
    return limits(ctx)


def _check_admin_remains(ctx: Context, session: Session, user: User) -> None:
    others = select(User.id).where(User.is_admin, User.disabled_at.is_(None), User.id != user.id)
    if not ctx.private:  # the owner of a server that used to be private can no longer sign in
        others = others.where(User.email != OWNER_EMAIL)
    if user.is_admin and session.scalar(others.limit(1)) is None:
        raise NotAllowedNow("This server needs an admin: make someone else one first.")


def _find(session: Session, id_or_email: str) -> User:
    found = session.scalar(select(User).where(or_(User.id == id_or_email, User.email == id_or_email.strip().lower())))
    if found is None:
        raise NotFound(f"There is no account '{id_or_email}' on this server.")
    return found


def _read(session: Session, user_id: str) -> AccountView:
    return _view(*session.execute(_ACCOUNTS.where(User.id == user_id)).one())


def _view(user: User, workspaces: int, jobs: int) -> AccountView:
    return AccountView(
        id=user.id,
        email=user.email,
        name=user.name,
        is_admin=user.is_admin,
        created_at=user.created_at,
        disabled_at=user.disabled_at,
        email_verified=user.email_verified_at is not None,
        has_password=user.password_hash is not None,
        workspaces=workspaces,
        jobs=jobs,
    )
