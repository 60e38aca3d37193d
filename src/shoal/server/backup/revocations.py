"""List of revoked keys, accounts and invitations outside the database: a restored backup must not make them valid again.

Sessions, join tokens and tokens of agents are not in the list: a restore ends all of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from shoal.server.backup import snapshot
from shoal.server.backup.place import Place

_KINDS = {
    "key": ("api_keys", "revoked_at"),
    "user": ("users", "disabled_at"),
    "invitation": ("workspace_invitations", "revoked_at"),
    "used-invitation": ("workspace_invitations", "used_at"),
    "swarm-invitation": ("swarm_invitations", "revoked_at"),
}
"""Kind → table and the column that is set once a row is revoked."""
_SHORT_LIVED = ("sessions", "pool_joins")


def of_database(path: Path) -> list[tuple[str, str]]:
    """Return (kind, id) of everything that is revoked in a database."""
    return [
        (kind, str(id_))
        for kind, (table, column) in _KINDS.items()
        for (id_,) in snapshot.query(path, f"SELECT id FROM {table} WHERE {column} IS NOT NULL")  # noqa: S608  constants
    ]


def export(path: Path, place: Place) -> None:
    """Bring a place's list up to date with a database. Only an account can be allowed again after it was disabled."""
    place.revoke(of_database(path))
    place.pardon(
        ("user", str(id_)) for (id_,) in snapshot.query(path, "SELECT id FROM users WHERE disabled_at IS NULL")
    )


def apply(path: Path, revoked: Iterable[tuple[str, str]], *, all_keys: bool = False) -> int:
    """Revoke in a restored database what is in the list, and end everything short-lived; return how many rows were revoked.

    `all_keys`: revoke every API key, for when the list may be incomplete.
    """
    now, count = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f"), 0
    with closing(sqlite3.connect(path, timeout=30)) as db, db:
        for kind, id_ in revoked:
            if kind not in _KINDS:
                continue
            table, column = _KINDS[kind]
            sql = f"UPDATE {table} SET {column} = ? WHERE id = ? AND {column} IS NULL"  # noqa: S608
            count += db.execute(sql, (now, id_)).rowcount
        if all_keys:
            count += db.execute("UPDATE api_keys SET revoked_at = ? WHERE revoked_at IS NULL", (now,)).rowcount
        for table in _SHORT_LIVED:
            db.execute(f"DELETE FROM {table}")  # noqa: S608
    return count
