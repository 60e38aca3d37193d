"""Upgrades of the database, and the way back: a copy of it made before its tables are changed."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from shoal import __version__
from shoal.core import system
from shoal.core.backups import UpgradeView
from shoal.core.errors import Corrupt, NotFound, Refused
from shoal.core.instance import assign, instance_id, is_held
from shoal.core.settings import Layout
from shoal.server.backup import revocations, snapshot
from shoal.server.db import Database
from shoal.server.migrations import HEAD, MADE_BY, refuse_newer, upgrade
from shoal.server.models.server import ServerFact

logger = logging.getLogger(__name__)
_KEEP = 2
_SETTINGS = ".toml"


def pending(layout: Layout) -> str | None:
    """Return the version of a database whose tables are older than this program's; None if there is nothing to upgrade."""
    version = snapshot.version_of(layout.database) if layout.database.exists() else None
    return version if version is not None and version < HEAD else None


def copy_before(layout: Layout, doing: Callable[[str], None] = lambda text: None) -> Path | None:
    """Copy a database whose tables are about to change; return the copy, or None if there is nothing to upgrade."""
    version = pending(layout)
    if version is None:
        return None
    doing(f"copying the database before its upgrade from version {version} to {HEAD}")
    copy = _copy_of(layout, version)
    if not copy.with_suffix(_SETTINGS).exists():
        copy_settings(layout)
    aside = copy.with_suffix(".tmp")
    aside.unlink(missing_ok=True)
    snapshot.copy_database(layout.database, aside)
    aside.chmod(0o600)
    aside.replace(copy)
    for old in _copies(layout)[_KEEP:]:
        old.unlink(missing_ok=True)
        old.with_suffix(_SETTINGS).unlink(missing_ok=True)
    return copy


def copy_settings(layout: Layout) -> None:
    """Copy the settings beside the database's copy, before this version writes them with names the older one does not know."""
    version = pending(layout)
    if version is not None and layout.settings_file.exists():
        shutil.copy2(layout.settings_file, _copy_of(layout, version).with_suffix(_SETTINGS))


def remember_version(db: Database) -> None:
    """Store the version of Shoal that opens the database, for the message of an older one that cannot."""
    with db.read() as session:
        known = session.get(ServerFact, MADE_BY)
    if known is None or known.value != __version__:
        db.write(lambda session: session.merge(ServerFact(name=MADE_BY, value=__version__)) and None)


def upgrade_now(layout: Layout, doing: Callable[[str], None] = lambda text: None) -> UpgradeView:
    """Upgrade the database of a server that does not run, and examine it before and after.

    Nothing is changed if it is damaged, or if the copy cannot be made. If a step fails, the database is as it was: its tables
    are changed in one transaction.
    """
    if not layout.database.exists():
        raise NotFound(f"There is no database at {layout.database}.", hint="shoal server start")
    began = time.monotonic()
    with _alone(layout):
        before = snapshot.version_of(layout.database)
        refuse_newer(before, snapshot.fact(layout.database, MADE_BY))
        known = snapshot.integrity_problems(layout.database)
        if damage := [
            problem for problem in known if not problem[0].isdigit()
        ]:  # others are rows without the one they name
            raise Corrupt(
                f"The database is damaged and was left as it is: {damage[0]}.",
                hint="shoal server backup list, then restore the newest into another SHOAL_HOME: shoal server restore PLACE",
            )
        copy = copy_before(layout, doing)
        db = Database(layout.database)
        try:
            upgrade(db.writer, doing=doing)
            remember_version(db)
        finally:
            db.close()
        if new := [problem for problem in snapshot.integrity_problems(layout.database) if problem not in known]:
            raise Corrupt(f"The upgraded database is damaged: {new[0]}.", hint="shoal server downgrade --yes")
    rows = sum(snapshot.row_counts(layout.database).values())
    return UpgradeView(
        before=before or "",
        after=HEAD,
        rows=rows,
        copy_before=str(copy) if copy else None,
        seconds=round(time.monotonic() - began, 2),
    )


@contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    """Keep servers from starting; raise Refused if one runs."""
    with layout.server_lock.open("a") as file:
        try:
            system.flock(file, system.LOCK_EX | system.LOCK_NB)
        except BlockingIOError:
            raise Refused("The server is running.", hint="shoal server stop") from None
        yield


def downgrade(layout: Layout) -> tuple[Path, Path]:
    """Put the newest copy from before an upgrade back in place; return that copy and where the present database was moved.

    The settings are put back too. Keys revoked since then stay revoked, and jobs that ran are given up like those of a copied data directory.
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
    if (settings := copy.with_suffix(_SETTINGS)).exists():
        if layout.settings_file.exists():
            layout.settings_file.replace(layout.settings_file.with_name(f"settings.toml.upgraded-{now}"))
        settings.replace(layout.settings_file)
    assign(layout, copy_of=instance_id(layout) or "unknown")
    return copy, aside


def _copy_of(layout: Layout, version: str) -> Path:
    folder = _folder(layout)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"shoal-{version}.db"


def _folder(layout: Layout) -> Path:
    return layout.server_dir / "before-upgrade"


def _copies(layout: Layout) -> list[Path]:
    """Return the copies, newest first."""
    return sorted(_folder(layout).glob("shoal-*.db"), key=lambda path: path.stat().st_mtime, reverse=True)
