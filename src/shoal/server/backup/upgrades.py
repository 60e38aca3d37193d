"""The way back from an upgrade: a copy of the database made before its tables are changed."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from shoal import __version__
from shoal.core.errors import NotFound, Refused
from shoal.core.instance import assign, instance_id, is_held
from shoal.core.settings import Layout
from shoal.server.backup import revocations, snapshot
from shoal.server.db import Database
from shoal.server.migrations import HEAD, MADE_BY
from shoal.server.models.server import ServerFact

logger = logging.getLogger(__name__)
_KEEP = 2


def copy_before(layout: Layout, doing: Callable[[str], None] = lambda text: None) -> Path | None:
    """Copy a database whose tables are about to change; return the copy, or None if there is nothing to upgrade."""
    if not layout.database.exists():
        return None
    version = snapshot.version_of(layout.database)
    if version is None or version >= HEAD:
        return None
    doing(f"copying the database before its upgrade from version {version} to {HEAD}")
    folder = _folder(layout)
    folder.mkdir(mode=0o700, exist_ok=True)
    copy = folder / f"shoal-{version}.db"
    aside = copy.with_suffix(".tmp")
    aside.unlink(missing_ok=True)
    snapshot.copy_database(layout.database, aside)
    aside.chmod(0o600)
    aside.replace(copy)
    for old in _copies(layout)[_KEEP:]:
        old.unlink(missing_ok=True)
    return copy


def remember_version(db: Database) -> None:
    """Store the version of Shoal that opens the database, for the message of an older one that cannot."""
    with db.read() as session:
        known = session.get(ServerFact, MADE_BY)
    if known is None or known.value != __version__:
        db.write(lambda session: session.merge(ServerFact(name=MADE_BY, value=__version__)) and None)


def downgrade(layout: Layout) -> tuple[Path, Path]:
    """Put the newest copy from before an upgrade back in place; return that copy and where the present database was moved.

    Keys revoked since then stay revoked, and jobs that ran are given up like those of a copied data directory.
    """
    copies = _copies(layout)
    if not copies:
        raise NotFound(
            f"There is no copy from before an upgrade in {_folder(layout)}.", hint="shoal server backup list"
        )
    if is_held(layout.server_lock):
        raise Refused("The server is running.", hint="shoal server stop")
    copy, now = copies[0], datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    aside = layout.database.with_name(f"shoal.db.upgraded-{now}")
    restored = layout.database.with_name("shoal.db.restoring")
    restored.unlink(missing_ok=True)
    snapshot.copy_database(copy, restored)
    if layout.database.exists():
        snapshot.copy_database(layout.database, aside)
        revocations.apply(restored, revocations.of_database(layout.database))
    with closing(sqlite3.connect(restored)) as db:
        db.execute("PRAGMA journal_mode=DELETE")
    restored.chmod(0o600)
    for suffix in ("-wal", "-shm"):
        layout.database.with_name(f"{layout.database.name}{suffix}").unlink(missing_ok=True)
    restored.replace(layout.database)
    assign(layout, copy_of=instance_id(layout) or "unknown")
    return copy, aside


def _folder(layout: Layout) -> Path:
    return layout.server_dir / "before-upgrade"


def _copies(layout: Layout) -> list[Path]:
    """Return the copies, newest first."""
    return sorted(_folder(layout).glob("shoal-*.db"), key=lambda path: path.stat().st_mtime, reverse=True)
