"""Sign-in of a browser without a password, by a link that is created with an API key and works once within two minutes.

The code in the link is itself a session of two minutes. Opening the link ends it and starts a regular session.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import AuthError, Forbidden
from shoal.core.people import ALL_SCOPES, SessionView
from shoal.core.schema import utcnow
from shoal.server.audit.record import record_failure
from shoal.server.context import Context
from shoal.server.models.users import ApiKey, SessionRow, User
from shoal.server.people.accounts import has_accounts
from shoal.server.people.sign_in import SESSION_LIFE, start_session
from shoal.server.policy import Principal, hash_token
from shoal.server.web.forms import local_path

LINK_LIFE = timedelta(minutes=2)


def offer(ctx: Context, principal: Principal) -> str:
    """Return a code for `/enter/…`. The key must have all scopes, because a session can do everything its user can."""
    if not principal.scopes >= set(ALL_SCOPES):
        raise Forbidden("A key with fewer than all scopes cannot open the console.")

    def work(session: Session) -> str:
        key = session.get(ApiKey, principal.key_id)
        if key is not None and key.expires_at is not None:
            raise Forbidden("A key that expires cannot open the console: its sessions would outlive it.")
        user = session.get_one(User, principal.user_id)
        return start_session(session, user, life=LINK_LIFE).token

    return ctx.db.write(work)


def enter(ctx: Context, code: str, program: str) -> SessionView:
    """End the session of the link and return a regular one; raise AuthError if the link is used or expired."""

    def work(session: Session) -> SessionView:
        now = utcnow()
        gone = (
            delete(SessionRow)
            .where(SessionRow.secret_hash == hash_token(code), SessionRow.expires_at > now)
            .where(SessionRow.expires_at <= now + LINK_LIFE)
            .returning(SessionRow.user_id)
        )
        user_id = session.scalar(gone)
        if user_id is None:
            raise AuthError("This link was used before or has expired.", hint="shoal console")
        return start_session(session, session.get_one(User, user_id), life=SESSION_LIFE, program=program)

    try:
        return ctx.db.write(work)
    except AuthError:
        record_failure(ctx, AuditAction.SESSION_START, None, "link used before or expired")
        raise


def may_sign_up(ctx: Context) -> bool:
    """Return whether a visitor without an invitation can sign up."""
    if ctx.settings.sign_up:
        return True
    with ctx.db.read() as session:
        return not ctx.private and not has_accounts(session)


def sign_in_data(ctx: Context, next_path: str, *, expired: bool = False, error: str | None = None, email: str = "",
                 said: str = "") -> dict[str, Any]:  # fmt: skip
    """Return what the sign-in page shows. `said`: a message above the form."""
    return {
        "private": ctx.private,
        "may_sign_up": may_sign_up(ctx),
        "next": local_path(next_path),
        "expired": expired,
        "error": error,
        "email": email,
        "said": said,
        "services": [] if ctx.private else ctx.sign_in_services.list(),
        "sends_mail": ctx.mail.is_set_up,
    }


def has_password(ctx: Context, principal: Principal) -> bool:
    with ctx.db.read() as session:
        return session.scalar(select(User.password_hash).where(User.id == principal.user_id)) is not None
