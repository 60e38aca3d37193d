"""Signing up, in and out."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import Forbidden, InvalidSpec, NameTaken, NotAllowedNow, NotSignedIn
from shoal.core.ids import new_id
from shoal.core.people import OwnerAccount, PasswordChange, ProfileChange, Scope, SessionView, SignIn, SignUp, UserView
from shoal.core.schema import utcnow
from shoal.server.audit.record import as_person, record_action, record_failure
from shoal.server.context import Context
from shoal.server.models.audit import AuditRow
from shoal.server.models.users import SessionRow, User
from shoal.server.people import common_passwords, recovery
from shoal.server.people import invitations as workspace_invitations
from shoal.server.people.accounts import add_user, check_setup_code, claim, has_accounts
from shoal.server.people.keys import SESSION_PREFIX, new_token
from shoal.server.policy import Principal, hash_token

SESSION_LIFE = timedelta(days=30)
_WRONG = "E-mail or password is wrong."


def sign_up(ctx: Context, body: SignUp, *, caller: Principal | None, address: str,
            program: str = "") -> SessionView:  # fmt: skip
    """Create an account and sign in.

    Allowed if sign-up is open, there is no account yet, the caller is an admin, or an invitation is given. The first account
    becomes an admin.
    """
    if not (body.email.isprintable() and body.name.isprintable()):
        raise InvalidSpec("An e-mail address or name cannot contain control characters.")
    # The answer reveals whether an e-mail address is taken, so each call counts as a try.
    ctx.guards.tries.begin(email=f"sign-up of {body.email}", address=address)
    with ctx.db.read() as session:
        if _check_sign_up(ctx, session, body, caller):
            check_setup_code(ctx, body.setup_code)
    common_passwords.check(body.password, email=body.email)
    hashed = ctx.guards.passwords.hash(body.password)

    def work(session: Session) -> SessionView:
        is_first = _check_sign_up(ctx, session, body, caller)
        user = add_user(session, email=body.email, name=body.name, password_hash=hashed, is_admin=is_first)
        joined = workspace_invitations.redeem(session, body.invitation, user) if body.invitation else None
        return start_session(session, user, program=program).model_copy(update={"joined": joined})

    view = ctx.db.write(work)
    if view.user.is_admin:
        ctx.layout.setup_code.unlink(missing_ok=True)
    if caller is None:
        recovery.welcome(ctx, view.user.id)
    ctx.guards.tries.forgive(email=f"sign-up of {body.email}", address=address)
    return view


def claim_owner(ctx: Context, principal: Principal, body: OwnerAccount) -> UserView:
    return _view(claim(ctx, principal, body))


def sign_in(ctx: Context, body: SignIn, *, address: str, program: str = "") -> SessionView:
    email = body.email.strip().lower()
    ctx.guards.tries.begin(email=email, address=address, has_been_here=lambda: _has_signed_in(ctx, email, address))
    with ctx.db.read() as session:
        user = session.scalar(select(User).where(User.email == email))
    known = user.password_hash if user else None
    if not ctx.guards.passwords.verify(known, body.password) or user is None or known is None:
        record_failure(ctx, AuditAction.SESSION_START, user, "wrong password" if user else "unknown e-mail address")
        raise NotSignedIn(_WRONG)
    ctx.guards.tries.forgive(email=email, address=address)
    fresh = ctx.guards.passwords.hash(body.password) if ctx.guards.passwords.is_outdated(known) else known

    def work(session: Session) -> SessionView:
        row = session.get(User, user.id)
        if row is None or row.password_hash != known:
            raise NotSignedIn(_WRONG)  # deleted or changed during the hashing
        if row.disabled_at is not None:
            raise Forbidden("This account is disabled. Ask an admin of this server.")
        row.password_hash = fresh
        session.execute(delete(SessionRow).where(SessionRow.expires_at <= utcnow()))
        return start_session(session, row, program=program)

    try:
        return ctx.db.write(work, essential=True)
    except (Forbidden, NotSignedIn) as error:
        why = "disabled account" if isinstance(error, Forbidden) else "wrong password"
        record_failure(ctx, AuditAction.SESSION_START, user, why)
        raise


def _has_signed_in(ctx: Context, email: str, address: str) -> bool:
    """Return whether the account has signed in from this address before."""
    ours = select(AuditRow.seq).where(AuditRow.actor == email, AuditRow.action == AuditAction.SESSION_START.value)
    with ctx.db.read() as session:
        return session.scalar(ours.where(AuditRow.address == address, AuditRow.result == "ok").limit(1)) is not None


def sign_out(ctx: Context, principal: Principal) -> None:
    def work(session: Session) -> bool:
        gone = delete(SessionRow).where(SessionRow.id == principal.key_id).returning(SessionRow.id)
        if session.scalar(gone) is None:
            return False
        record_action(session, AuditAction.SESSION_END, principal.email, principal.key_id)
        return True

    if not ctx.db.write(work, essential=True) and not principal.key_id.startswith("session_"):
        raise NotAllowedNow("You are using an API key, which has no session to end.", hint="shoal key revoke NAME")


def change_password(ctx: Context, principal: Principal, body: PasswordChange, *, address: str) -> None:
    """Change a person's password and end all their sessions except the current one."""
    ctx.guards.tries.begin(email=principal.email, address=address, has_been_here=lambda: True)
    with ctx.db.read() as session:
        known = session.scalar(select(User.password_hash).where(User.id == principal.user_id))
    if known is None:
        raise NotAllowedNow(
            "This account has no password: it signs in with a key file or a sign-in service.",
            hint="shoal password --lost",
        )
    if not ctx.guards.passwords.verify(known, body.old_password):
        record_failure(ctx, AuditAction.ACCOUNT_CHANGE_PASSWORD, principal, "wrong old password")
        raise NotSignedIn("The old password is wrong.")
    ctx.guards.tries.forgive(email=principal.email, address=address)
    common_passwords.check(body.new_password, email=principal.email)
    hashed = ctx.guards.passwords.hash(body.new_password)

    def work(session: Session) -> None:
        user = session.get_one(User, principal.user_id)
        if user.password_hash != known:
            raise NotAllowedNow("The password was changed meanwhile.")
        user.password_hash = hashed
        others = delete(SessionRow).where(SessionRow.user_id == user.id, SessionRow.id != principal.key_id)
        session.execute(others)
        record_action(session, AuditAction.ACCOUNT_CHANGE_PASSWORD, user.email, user.id)

    ctx.db.write(work)


def me(ctx: Context, principal: Principal) -> UserView:
    with ctx.db.read() as session:
        return _view(session.get_one(User, principal.user_id))


def change_profile(ctx: Context, principal: Principal, body: ProfileChange) -> UserView:
    def work(session: Session) -> UserView:
        user = session.get_one(User, principal.user_id)
        user.name = body.name
        return _view(user)

    return ctx.db.write(work)


def _check_sign_up(ctx: Context, session: Session, body: SignUp, caller: Principal | None) -> bool:
    """Raise unless this account may be made now; True when it is the server's first."""
    email = body.email
    if body.invitation:
        workspace_invitations.check(session, body.invitation, email)
    is_first = not ctx.private and not has_accounts(session)
    by_admin = caller is not None and caller.is_admin and Scope.ADMIN in caller.scopes
    if not (is_first or by_admin or ctx.settings.sign_up or body.invitation):
        raise Forbidden(
            "This server is not open for sign-up: ask an owner of a workspace for an invitation.",
            hint="With the link they send you: shoal signup --invitation LINK",
        )
    if session.scalar(select(User.id).where(User.email == email)):
        hint = "shoal login --invitation LINK" if body.invitation else "shoal login"
        raise NameTaken(f"There already is an account for {email}.", hint=hint)
    return is_first


def start_session(session: Session, user: User, life: timedelta = SESSION_LIFE, program: str = "") -> SessionView:
    """Create a session for a user whose identity the caller has checked."""
    token, now = new_token(SESSION_PREFIX), utcnow()
    row = SessionRow(
        id=new_id("session"),
        user_id=user.id,
        secret_hash=hash_token(token),
        created_at=now,
        expires_at=now + life,
        program=program,
    )
    session.add(row)
    if life >= SESSION_LIFE:  # a link that opens a browser lives shorter, and starts a session when it is used
        who = as_person(session, user.email, row.id)
        record_action(session, AuditAction.SESSION_START, user.email, user.id, detail=program, actor=who)
    return SessionView(token=token, user=_view(user), expires_at=row.expires_at)


def _view(user: User) -> UserView:
    return UserView(
        id=user.id,
        email=user.email,
        name=user.name,
        is_admin=user.is_admin,
        created_at=user.created_at,
        email_verified=user.email_verified_at is not None,
    )
