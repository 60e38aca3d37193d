"""Secrets: set by people, stored encrypted, decrypted only when a job starts."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import Corrupt, InvalidSpec, NotFound
from shoal.core.names import did_you_mean
from shoal.core.people import SecretSet, SecretView
from shoal.core.schema import utcnow
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.models.secrets import Secret
from shoal.server.policy import Access


def set_secret(ctx: Context, access: Access, body: SecretSet) -> SecretView:
    """Create a secret or replace its value."""
    if "\0" in body.value:
        raise InvalidSpec("A secret becomes an environment variable and so cannot contain a NUL byte.")
    sealed = ctx.vault.seal(body.value, bound_to=_bond(access.workspace_id, body.name))

    def work(session: Session) -> SecretView:
        now = utcnow()
        row = session.get(Secret, (access.workspace_id, body.name))
        if row is None:
            row = Secret(workspace_id=access.workspace_id, name=body.name, created_at=now)
            session.add(row)
        row.sealed, row.updated_at = sealed, now
        record_action(session, AuditAction.SECRET_SET, body.name, workspace=access)
        return _view(row)

    return ctx.db.write(work)


def list_secrets(ctx: Context, access: Access) -> list[SecretView]:
    with ctx.db.read() as session:
        rows = session.scalars(select(Secret).where(Secret.workspace_id == access.workspace_id).order_by(Secret.name))
        return [_view(row, readable=_is_readable(ctx, row)) for row in rows]


def delete_secret(ctx: Context, access: Access, name: str) -> None:
    def work(session: Session) -> None:
        row = session.get(Secret, (access.workspace_id, name))
        if row is None:
            raise _unknown(session, access.workspace_id, name)
        session.delete(row)
        record_action(session, AuditAction.SECRET_DELETE, name, workspace=access)

    ctx.db.write(work, essential=True)


def open_secrets(ctx: Context, workspace_id: str, names: Mapping[str, str]) -> dict[str, str]:
    """Decrypt the secrets of a job. `names`: environment variable → secret name; returns environment variable → value."""
    if not names:
        return {}
    with ctx.db.read() as session:
        sealed = _sealed(session, workspace_id, names)
    return {env: _open(ctx, workspace_id, name, sealed[name]) for env, name in names.items()}


def _open(ctx: Context, workspace_id: str, name: str, sealed: bytes) -> str:
    try:
        return ctx.vault.open(sealed, bound_to=_bond(workspace_id, name))
    except Corrupt:
        raise Corrupt(
            f"The secret '{name}' cannot be decrypted: it was stored with another secret.key. Set it again.",
            hint=f"shoal secret create {name}",
        ) from None


def _is_readable(ctx: Context, row: Secret) -> bool:
    return ctx.vault.opens(row.sealed, bound_to=_bond(row.workspace_id, row.name))


def _sealed(session: Session, workspace_id: str, names: Mapping[str, str]) -> dict[str, bytes]:
    wanted = select(Secret.name, Secret.sealed).where(
        Secret.workspace_id == workspace_id, Secret.name.in_(set(names.values()))
    )
    found = {row.name: row.sealed for row in session.execute(wanted)}
    for name in names.values():
        if name not in found:
            raise _unknown(session, workspace_id, name)
    return found


def _unknown(session: Session, workspace_id: str, name: str) -> NotFound:
    guess = did_you_mean(name, session.scalars(select(Secret.name).where(Secret.workspace_id == workspace_id)))
    return NotFound(f"There is no secret '{name}' in this workspace.{guess}", hint=f"shoal secret create {name}")


def _bond(workspace_id: str, name: str) -> str:
    return f"{workspace_id}/{name}"


def _view(row: Secret, *, readable: bool = True) -> SecretView:
    return SecretView(name=row.name, created_at=row.created_at, updated_at=row.updated_at, readable=readable)
