"""API keys: shown once, stored as a hash, limited by scopes and expiry."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import timedelta

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import Forbidden, NameTaken, NotFound
from shoal.core.ids import new_id
from shoal.core.names import did_you_mean
from shoal.core.people import KeyCreate, KeyCreated, KeyView, Scope
from shoal.core.schema import utcnow
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.models.users import ApiKey
from shoal.server.policy import Principal, hash_token

KEY_PREFIX = "shoal_"
SESSION_PREFIX = "shoals_"


def new_token(prefix: str) -> str:
    """Return the prefix followed by 256 random bits as 43 characters."""
    return prefix + secrets.token_urlsafe(32)


def add_key(session: Session, *, user_id: str, name: str, token: str, scopes: Iterable[Scope],
            life: timedelta | None = None) -> ApiKey:  # fmt: skip
    """Store a key's hash. The caller has checked that the name is free."""
    now = utcnow()
    row = ApiKey(
        id=new_id("key"),
        user_id=user_id,
        name=name,
        secret_hash=hash_token(token),
        hint=token[-4:],
        scopes=[s.value for s in Scope if s in set(scopes)],
        created_at=now,
        expires_at=now + life if life else None,
        last_used_at=None,
        revoked_at=None,
    )
    session.add(row)
    return row


def create_key(ctx: Context, principal: Principal, body: KeyCreate) -> KeyCreated:
    if extra := set(body.scopes) - principal.scopes:
        names = ", ".join(sorted(extra))
        raise Forbidden(f"The key you use does not have the scope {names}, so it cannot create a key that has it.")
    token = new_token(KEY_PREFIX)
    life = timedelta(seconds=body.expires_in_s) if body.expires_in_s else None

    def work(session: Session) -> KeyView:
        taken = select(ApiKey.id).where(
            ApiKey.user_id == principal.user_id, ApiKey.name == body.name, ApiKey.revoked_at.is_(None)
        )
        if session.scalar(taken):
            raise NameTaken(f"You already have a key named '{body.name}'.", hint=f"shoal key revoke {body.name}")
        row = add_key(session, user_id=principal.user_id, name=body.name, token=token, scopes=body.scopes, life=life)
        _check_outlives(session.get(ApiKey, principal.key_id), row)
        record_action(session, AuditAction.KEY_CREATE, row.name, row.id, detail=f"scopes {', '.join(row.scopes)}")
        return _view(ctx, row)

    return KeyCreated(key=token, **ctx.db.write(work).model_dump())


def list_keys(ctx: Context, principal: Principal) -> list[KeyView]:
    """Return a person's keys, newest first, including revoked and expired ones."""
    with ctx.db.read() as session:
        rows = session.scalars(select(ApiKey).where(ApiKey.user_id == principal.user_id).order_by(ApiKey.id.desc()))
        return [_view(ctx, row) for row in rows]


def revoke_key(ctx: Context, principal: Principal, name_or_id: str) -> None:
    def work(session: Session) -> None:
        live = select(ApiKey).where(ApiKey.user_id == principal.user_id, ApiKey.revoked_at.is_(None))
        found = session.scalars(live.where(or_(ApiKey.id == name_or_id, ApiKey.name == name_or_id))).all()
        if not found:
            guess = did_you_mean(name_or_id, [k.name for k in session.scalars(live)])
            raise NotFound(f"You have no key '{name_or_id}'.{guess}", hint="shoal key list")
        # An id is exact; a name that looks like one must not shadow it.
        row = min(found, key=lambda k: k.id != name_or_id)
        row.revoked_at = utcnow()
        record_action(session, AuditAction.KEY_REVOKE, row.name, row.id)

    ctx.db.write(work, essential=True)


def flush_touched(ctx: Context) -> None:
    """Write the collected times of last use to the database; called about once a minute and when the server stops."""
    uses = ctx.guards.last_uses.pop_all()
    if not uses:
        return

    def work(session: Session) -> None:
        for key_id, at in uses.items():
            session.execute(update(ApiKey).where(ApiKey.id == key_id).values(last_used_at=at))

    ctx.db.write(work)


def _check_outlives(maker: ApiKey | None, made: ApiKey) -> None:
    """Raise if a new key would outlive the key that makes it. Else a key lent for a day could renew itself forever."""
    if maker is None or maker.expires_at is None:
        return
    if made.expires_at is None or made.expires_at > maker.expires_at:
        until = maker.expires_at.isoformat(timespec="seconds").replace("+00:00", "Z")
        raise Forbidden(f"The key you use expires at {until}; a key made with it must expire by then.")


def _view(ctx: Context, row: ApiKey) -> KeyView:
    return KeyView(
        id=row.id,
        name=row.name,
        scopes=[Scope(s) for s in row.scopes],
        hint=row.hint,
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=ctx.guards.last_uses.get(row.id) or row.last_used_at,
        revoked_at=row.revoked_at,
    )
