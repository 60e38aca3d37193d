"""Making accounts, and the owner of a private server, who signs in by a key file instead of a password."""

from __future__ import annotations

import logging
import secrets

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from shoal.core.errors import Forbidden
from shoal.core.ids import new_id
from shoal.core.people import ALL_SCOPES, Role
from shoal.core.private import write_private
from shoal.core.schema import utcnow
from shoal.server.context import Context
from shoal.server.models.people import ApiKey, Member, User, Workspace
from shoal.server.policy import hash_token
from shoal.server.services.keys import KEY_PREFIX, add_key, new_token

logger = logging.getLogger(__name__)
OWNER_EMAIL = "owner@localhost"
OWNER_KEY_NAME = "owner-file"
FIRST_WORKSPACE = "default"


def add_user(session: Session, *, email: str, name: str, password_hash: str | None, is_admin: bool) -> User:
    """A user and a first workspace. The caller has made sure that the e-mail is free."""
    user = User(
        id=new_id("user"), email=email, name=name, password_hash=password_hash, is_admin=is_admin, created_at=utcnow()
    )
    session.add(user)
    session.flush()
    add_workspace(session, owner_id=user.id, name=FIRST_WORKSPACE)
    return user


def add_workspace(session: Session, *, owner_id: str, name: str) -> Workspace:
    workspace = Workspace(id=new_id("ws"), owner_id=owner_id, name=name, created_at=utcnow())
    session.add(workspace)
    session.flush()
    session.add(Member(workspace_id=workspace.id, user_id=owner_id, role=Role.OWNER))
    return workspace


def ensure_owner(ctx: Context) -> None:
    """See to it that a private server has its owner and a file with a key that works, and that others have neither.

    The file does not open a server that listens to the network: there, its key is revoked, and the first account is made
    with a code that only those who can read the server's files know.
    """
    if not ctx.private:
        ctx.db.write(_revoke_owner_key)
        _ensure_setup_code(ctx)
        return
    ctx.layout.setup_code.unlink(missing_ok=True)
    if _file_opens(ctx):
        return
    token = new_token(KEY_PREFIX)

    def work(session: Session) -> None:
        user = session.scalar(select(User).where(User.email == OWNER_EMAIL)) or add_user(
            session, email=OWNER_EMAIL, name="", password_hash=None, is_admin=True
        )
        _revoke_owner_key(session)
        add_key(session, user_id=user.id, name=OWNER_KEY_NAME, token=token, scopes=ALL_SCOPES)

    # The key first, the file second: dying in between leaves a key nobody knows, revoked at the next start.
    ctx.db.write(work)
    write_private(ctx.layout.owner_key, token + "\n", durable=True)


def has_accounts(session: Session) -> bool:
    """The owner of a once private server has no password and cannot sign in any more: does not count."""
    return session.scalar(select(User.id).where(User.password_hash.is_not(None)).limit(1)) is not None


def check_setup_code(ctx: Context, given: str) -> None:
    try:
        expected = ctx.layout.setup_code.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return
    if not secrets.compare_digest(given.strip().encode(), expected.encode()):
        raise Forbidden(
            "The first account of this server is its admin's, and is made with the server's setup code.",
            hint="See it on the server's machine with `shoal server status`, then: shoal signup --setup-code CODE",
        )


def _ensure_setup_code(ctx: Context) -> None:
    with ctx.db.read() as session:
        if has_accounts(session):
            ctx.layout.setup_code.unlink(missing_ok=True)
            return
    if not ctx.layout.setup_code.exists():
        write_private(ctx.layout.setup_code, secrets.token_hex(8) + "\n", durable=True)
        code = ctx.layout.setup_code.read_text().strip()
        logger.info("nobody has an account yet; the first one, its admin's, is made with the setup code %s", code)


def _revoke_owner_key(session: Session) -> None:
    owner = select(User.id).where(User.email == OWNER_EMAIL).scalar_subquery()
    live = update(ApiKey).where(ApiKey.user_id == owner, ApiKey.name == OWNER_KEY_NAME, ApiKey.revoked_at.is_(None))
    session.execute(live.values(revoked_at=utcnow()).execution_options(synchronize_session=False))


def _file_opens(ctx: Context) -> bool:
    try:
        token = ctx.layout.owner_key.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return False
    with ctx.db.read() as session:
        found = session.scalar(
            select(ApiKey.id)
            .join(User, User.id == ApiKey.user_id)
            .where(User.email == OWNER_EMAIL, ApiKey.secret_hash == hash_token(token))
            .where(ApiKey.revoked_at.is_(None), ApiKey.expires_at.is_(None))
        )
    if found:
        ctx.layout.owner_key.chmod(0o600)
    return found is not None
