"""Creation of accounts, and the owner of a private server, who signs in with a key file instead of a password."""

from __future__ import annotations

import logging
import secrets

from sqlalchemy import Select, String, or_, select, update
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import Forbidden, InvalidSpec, NameTaken, NotAllowedNow
from shoal.core.ids import new_id
from shoal.core.people import ALL_SCOPES, OWNER_EMAIL, OwnerAccount, Role
from shoal.core.private import write_private
from shoal.core.schema import utcnow
from shoal.server.audit.record import of_request, record_action
from shoal.server.context import Context
from shoal.server.models.base import Base
from shoal.server.models.server import ServerFact
from shoal.server.models.users import ApiKey, User
from shoal.server.models.workspaces import Member, Workspace
from shoal.server.people import common_passwords
from shoal.server.people.keys import KEY_PREFIX, add_key, new_token
from shoal.server.policy import Principal, hash_token

logger = logging.getLogger(__name__)
OWNER_KEY_NAME = "owner-file"
FIRST_WORKSPACE = "default"
_OWNER_FACT = "owner_user_id"
"""Name of the fact that holds the owner's id once the owner has an address of their own."""


def add_user(session: Session, *, email: str, name: str, password_hash: str | None, is_admin: bool) -> User:
    """Create a user and a first workspace. The caller has checked that the e-mail address is free."""
    user = User(
        id=new_id("user"), email=email, name=name, password_hash=password_hash, is_admin=is_admin, created_at=utcnow()
    )
    session.add(user)
    session.flush()
    add_workspace(session, owner_id=user.id, name=FIRST_WORKSPACE)
    detail = "as an admin" if is_admin else ""
    record_action(session, AuditAction.ACCOUNT_CREATE, email, user.id, detail=detail, actor=of_request(session, email))
    return user


def add_workspace(session: Session, *, owner_id: str, name: str) -> Workspace:
    workspace = Workspace(id=new_id("ws"), owner_id=owner_id, name=name, created_at=utcnow())
    session.add(workspace)
    session.flush()
    session.add(Member(workspace_id=workspace.id, user_id=owner_id, role=Role.OWNER))
    return workspace


def ensure_owner(ctx: Context) -> None:
    """Make sure that a private server has an owner and a file with a valid key, and that other servers have neither.

    The file gives no access to a server that listens on the network: there its key is revoked, and creating the first account
    needs a code that only people who can read the server's files know.
    """
    if not ctx.private:
        ctx.db.write(_revoke_owner_key)
        _ensure_setup_code(ctx)
        return
    ctx.layout.setup_code.unlink(missing_ok=True)
    if _is_owner_file_valid(ctx):
        return
    token = new_token(KEY_PREFIX)

    def work(session: Session) -> None:
        user = session.scalar(_owner()) or add_user(
            session, email=OWNER_EMAIL, name="", password_hash=None, is_admin=True
        )
        _revoke_owner_key(session)
        row = add_key(session, user_id=user.id, name=OWNER_KEY_NAME, token=token, scopes=ALL_SCOPES)
        record_action(session, AuditAction.KEY_CREATE, OWNER_KEY_NAME, row.id, detail=f"of {user.email}")

    # The key first, the file second: a crash in between leaves a key that nobody knows; the next start revokes it.
    ctx.db.write(work)
    write_private(ctx.layout.owner_key, token + "\n", durable=True)


def claim(ctx: Context, principal: Principal, body: OwnerAccount) -> User:
    """Give the owner of a private server an e-mail address and a password, so that the server can be shared.

    It stays the same account: jobs, data and workspaces remain its own, also if the server is private again later.
    """
    if not (body.email.isprintable() and body.name.isprintable()):
        raise InvalidSpec("An e-mail address or name cannot contain control characters.")
    common_passwords.check(body.password, email=body.email)
    hashed = ctx.guards.passwords.hash(body.password)

    def work(session: Session) -> User:
        user = session.get_one(User, principal.user_id)
        if not ctx.private or user.email != OWNER_EMAIL:
            raise NotAllowedNow(
                "Only the owner of a private server can be given an account in this way.", hint="shoal whoami"
            )
        if session.scalar(select(User.id).where(User.email == body.email)):
            raise NameTaken(f"There already is an account for {body.email}.")
        user.email, user.name, user.password_hash = body.email, body.name, hashed
        session.merge(ServerFact(name=_OWNER_FACT, value=user.id))
        _rename_author(session, OWNER_EMAIL, body.email)
        record_action(session, AuditAction.ACCOUNT_CLAIM, body.email, user.id, detail=f"so far {OWNER_EMAIL}")
        session.flush()
        session.expunge(user)
        return user

    return ctx.db.write(work)


def has_accounts(session: Session) -> bool:
    """Check whether anyone has a password. The owner of a server that used to be private has none and does not count."""
    return session.scalar(select(User.id).where(User.password_hash.is_not(None)).limit(1)) is not None


def check_setup_code(ctx: Context, given: str) -> None:
    try:
        expected = ctx.layout.setup_code.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return
    if not secrets.compare_digest(given.strip().encode(), expected.encode()):
        raise Forbidden(
            "The first account becomes the server's admin. Creating it needs the server's setup code.",
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
        logger.info("no accounts yet; create the first one, the admin's, with the setup code %s", code)


def _owner() -> Select[User]:
    """Return the query for the owner of the private server, who may have got another address by `claim`."""
    named = select(ServerFact.value).where(ServerFact.name == _OWNER_FACT).scalar_subquery()
    return (
        select(User)
        .where(or_(User.id == named, User.email == OWNER_EMAIL))
        .order_by((User.id == named).desc())
        .limit(1)
    )


def _rename_author(session: Session, old: str, new: str) -> None:
    """Write the new address wherever rows name their author. Accounts of costs and the audit log keep what was true then."""
    for table in Base.metadata.tables.values():
        for column in table.columns:
            if column.name.endswith("_by") and isinstance(column.type, String):
                session.execute(update(table).where(column == old).values({column: new}))


def _revoke_owner_key(session: Session) -> None:
    owner = session.scalar(_owner())
    if owner is None:
        return
    live = update(ApiKey).where(ApiKey.user_id == owner.id, ApiKey.name == OWNER_KEY_NAME, ApiKey.revoked_at.is_(None))
    gone = live.values(revoked_at=utcnow()).returning(ApiKey.id).execution_options(synchronize_session=False)
    for key_id in session.scalars(gone).all():
        record_action(session, AuditAction.KEY_REVOKE, OWNER_KEY_NAME, key_id, detail=f"of {owner.email}")


def _is_owner_file_valid(ctx: Context) -> bool:
    try:
        token = ctx.layout.owner_key.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return False
    with ctx.db.read() as session:
        owner = session.scalar(_owner())
        found = owner and session.scalar(
            select(ApiKey.id)
            .where(ApiKey.user_id == owner.id, ApiKey.secret_hash == hash_token(token))
            .where(ApiKey.revoked_at.is_(None), ApiKey.expires_at.is_(None))
        )
    if found:
        ctx.layout.owner_key.chmod(0o600)
    return found is not None
