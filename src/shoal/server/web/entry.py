"""How a browser gets its first session without a password: a link that works once, for two minutes, made with a key.

The link's code is itself a session, of two minutes; entering ends it and starts the one that stays.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from shoal.core.errors import AuthError, Forbidden
from shoal.core.people import ALL_SCOPES, SessionView
from shoal.core.schema import utcnow
from shoal.server.context import Context
from shoal.server.models.people import ApiKey, SessionRow, User
from shoal.server.policy import Principal, hash_token
from shoal.server.services.accounts import has_accounts
from shoal.server.services.people import SESSION_LIFE, start_session

LINK_LIFE = timedelta(minutes=2)


def offer(ctx: Context, principal: Principal) -> str:
    """A code for `/enter/…`. A session may do anything its person may, so the key must, too."""
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
            raise AuthError("This link was used before, or is too old.", hint="shoal console")
        return start_session(session, session.get_one(User, user_id), life=SESSION_LIFE, program=program)

    return ctx.db.write(work)


def may_sign_up(ctx: Context) -> bool:
    """Whether a stranger gets anywhere with the sign-up form."""
    if ctx.settings.sign_up:
        return True
    with ctx.db.read() as session:
        return not ctx.private and not has_accounts(session)


def has_password(ctx: Context, principal: Principal) -> bool:
    with ctx.db.read() as session:
        return session.scalar(select(User.password_hash).where(User.id == principal.user_id)) is not None
