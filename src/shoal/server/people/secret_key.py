"""Handling of secret.key at the server's start.

The file is created for a new database, checked against an existing one, and replaced only on request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shoal.core.errors import Refused
from shoal.core.settings import Layout
from shoal.server.db import Database
from shoal.server.models.git import Registry
from shoal.server.models.leases import Lease
from shoal.server.models.secrets import Secret
from shoal.server.models.server import ServerFact
from shoal.server.models.swarm import Swarm
from shoal.server.models.users import User
from shoal.server.models.workspaces import Workspace
from shoal.server.people.vault import Vault

logger = logging.getLogger(__name__)
CHECK = "secret_key_check"
_MOST_NAMED = 10
_HINT = (
    "Restore {path} from a backup and start again; or give up what was encrypted with it: "
    "shoal server start --new-secret-key"
)


def open_vault(layout: Layout, db: Database, *, new_key: bool = False) -> Vault:
    """Return the vault, or raise Refused where the key file is not the one this database was encrypted with."""
    with db.read() as session:
        problem = _problem(layout, session)
        lost = list(_sealed_names(session)) if problem else []
    if problem is None and new_key:
        raise Refused(
            f"{layout.secret_key} matches the database, so it is not replaced.",
            hint="Start it with: shoal server start",
        )
    if problem is not None and not new_key:
        raise Refused(
            f"{layout.secret_key} {problem}. {_losses(lost)} Accounts, API keys, jobs, datasets and checkpoints "
            "are not affected.",
            hint=_HINT.format(path=layout.secret_key),
        )
    if problem is not None:
        _set_aside(layout)
        logger.warning("%s %s: creating a new one. %s", layout.secret_key, problem, _losses(lost))
    vault = Vault(layout.secret_key)
    db.write(lambda session: _remember(session, vault))
    return vault


def _problem(layout: Layout, session: Session) -> str | None:
    """Return what is wrong with the key file, in words that follow its name; None if it matches, or if none is needed yet."""
    known = session.get(ServerFact, CHECK)
    if not layout.secret_key.exists():
        is_new = known is None and session.scalar(select(func.count()).select_from(User)) == 0
        return None if is_new else "is missing, and this database was encrypted with it"
    try:
        vault = Vault(layout.secret_key)
    except ValueError:
        return "is damaged: it does not contain a key"
    changed = "was changed: it is not the key this database was encrypted with"
    if known is not None:
        return None if known.value == vault.check_value else changed
    # Databases of 0.1 have no check value. A single row may be broken for other reasons.
    sealed = [*_openings(session, vault)]
    return changed if sealed and not any(sealed) else None


def _openings(session: Session, vault: Vault) -> Iterator[bool]:
    for row in session.scalars(select(Secret)):
        yield vault.opens(row.sealed, bound_to=f"{row.workspace_id}/{row.name}")
    for token in session.scalars(select(Registry)):
        yield vault.opens(token.sealed, bound_to=f"{token.workspace_id}/registry/{token.host}")


def _sealed_names(session: Session) -> Iterator[str]:
    spaces = {row.id: row.name for row in session.execute(select(Workspace.id, Workspace.name))}
    for workspace_id, name in session.execute(select(Secret.workspace_id, Secret.name)):
        yield f"secret '{name}' (workspace '{spaces.get(workspace_id)}')"
    for workspace_id, host in session.execute(select(Registry.workspace_id, Registry.host)):
        yield f"git token for {host} (workspace '{spaces.get(workspace_id)}')"
    for name in session.scalars(select(Swarm.name)):
        yield f"signing key of swarm '{name}'"
    if count := session.scalar(select(func.count()).select_from(Lease).where(Lease.ended_at.is_(None))):
        yield f"SSH host keys of {count} rented machine{'s' if count > 1 else ''}"


def _losses(lost: Iterable[str]) -> str:
    found = list(lost)
    if not found:
        return "Nothing is encrypted with it at present."
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"Without it the following cannot be read and must be set again: {', '.join(found[:_MOST_NAMED])}{more}."


def _set_aside(layout: Layout) -> None:
    """Rename a key file that does not match. It is kept because it may be the key of another database."""
    if layout.secret_key.exists():
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        layout.secret_key.rename(layout.secret_key.with_name(f"{layout.secret_key.name}.replaced-{now}"))


def _remember(session: Session, vault: Vault) -> None:
    known = session.get(ServerFact, CHECK)
    if known is None:
        session.add(ServerFact(name=CHECK, value=vault.check_value))
    elif known.value != vault.check_value:
        known.value = vault.check_value
