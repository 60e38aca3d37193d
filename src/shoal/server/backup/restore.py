"""Restoring a backup into a new data directory, and verifying a backup by doing so in a temporary place.

A restored directory is a new instance of a later epoch. So agents and rented machines of the original are turned away by their
instance id; jobs that ran when the backup was made are given up without touching the original's processes (`copied_data`);
sessions and join tokens are ended; and what the place lists as revoked is revoked again. The ledger continues after its last
entry in the backup: open spans end at the last report in it, so no time is charged twice.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.backups import BackupView, RestoreView, VerifiedBackup
from shoal.core.errors import Corrupt, NotFound, Refused, ShoalError
from shoal.core.instance import assign, is_held
from shoal.core.settings import Layout, ServerSettings
from shoal.server.actor import local_user
from shoal.server.artifacts.upkeep import used_manifests
from shoal.server.audit.record import record_action
from shoal.server.backup import revocations, snapshot
from shoal.server.backup.create import DATABASE, EPOCH, FILES, copy_artifact
from shoal.server.backup.place import Place
from shoal.server.db import Database
from shoal.server.migrations import upgrade
from shoal.server.models.server import ServerFact
from shoal.server.people.secret_key import CHECK
from shoal.server.people.vault import Vault
from shoal.store.check import check as check_store
from shoal.store.local import LocalStore
from shoal.store.materialize import materialize

Say = Callable[[str], None]


def restore(
    place: Place,
    layout: Layout,
    *,
    backup_id: str | None = None,
    revoke_keys: bool = False,
    say: Say = lambda text: None,
) -> RestoreView:
    """Restore a backup into a data directory that has no database yet.

    The database is put in place last: after a crash the directory has none, and the restore can be repeated.
    """
    if is_held(layout.server_lock) or layout.database.exists():
        raise Refused(
            f"{layout.root} already has a database. A backup is restored into a new data directory.",
            hint="SHOAL_HOME=/new/folder shoal server restore PLACE",
        )
    backup = place.find(backup_id)
    layout.close()
    folder = Path(tempfile.mkdtemp(dir=layout.server_dir, prefix=".restore-"))
    try:
        say(f"Restoring the database of {backup.made_at:%Y-%m-%d %H:%M} UTC …")
        database = _unpack(place, backup, folder)
        revoked, until = place.revoked()
        count = revocations.apply(database, revoked, all_keys=revoke_keys)
        epoch = _begin_epoch(database, backup)
        for path in sorted((folder / "state" / FILES).glob("*")):
            path.chmod(0o600)
            path.replace(layout.server_dir / path.name)
        names = place.artifacts(backup)
        if backup.has_chunks:
            _copy_back(place, layout, names, say)
            _use_own_store(layout)
        instance = assign(layout, copy_of=backup.instance or "unknown")
        database.replace(layout.database)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    newest = max(b.made_at for b in place.backups())
    return RestoreView(
        id=backup.id,
        home=str(layout.root),
        instance=instance.id,
        original=backup.instance,
        epoch=epoch,
        made_at=backup.made_at,
        revoked=count,
        revocations_until=max(newest, until) if until else newest,
        artifacts=len(names),
        has_keys=backup.has_keys,
    )


def verify(place: Place, *, backup_id: str | None = None, say: Say = lambda text: None) -> VerifiedBackup:
    """Restore a backup into a temporary folder and compare it with what was recorded when it was made.

    Compares the rows of every table, the ledger, the key file and each artifact that a row refers to. Every chunk in the place
    is read and checked.
    """
    begun = time.monotonic()
    backup = place.find(backup_id)
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="shoal-verify-") as name:
        folder = Path(name)
        folder.chmod(0o700)
        say("Restoring the database …")
        try:
            database = _unpack(place, backup, folder, migrate=False)
            problems += _compare(backup, database)
            problems += _key_problems(backup, database, folder)
            say("Reading every chunk …")
            problems += _artifact_problems(place, backup, database)
        except ShoalError as error:
            problems.append(error.message)
    return VerifiedBackup(
        id=backup.id,
        ok=not problems,
        problems=problems,
        artifacts=backup.artifacts,
        database_bytes=backup.database_bytes,
        seconds=round(time.monotonic() - begun, 1),
    )


def _unpack(place: Place, backup: BackupView, folder: Path, *, migrate: bool = True) -> Path:
    """Write a backup's database and files to `folder`/state; return the database, intact and (with `migrate`) up to date."""
    materialize(place.store.get_manifest(backup.state), place.store.get, folder / "state", verify=False)
    database = folder / "state" / DATABASE
    if found := snapshot.integrity_problems(database):
        raise Corrupt(f"The database in backup {backup.id} is damaged: {found[0]}.")
    if migrate:
        _open(database).close()
    return database


def _open(path: Path) -> Database:
    """Open a database with tables of this version; raises Refused if a newer version of Shoal made it."""
    db = Database(path)
    try:
        upgrade(db.writer)
    except BaseException:
        db.close()
        raise
    return db


def _begin_epoch(database: Path, backup: BackupView) -> int:
    db, epoch = _open(database), backup.epoch + 1

    def work(session: Session) -> None:
        session.merge(ServerFact(name=EPOCH, value=str(epoch)))
        session.merge(ServerFact(name="restored_from", value=f"{backup.id} of {backup.instance}"))
        detail = f"made {backup.made_at:%Y-%m-%d %H:%M} UTC by instance {backup.instance or 'unknown'}"
        record_action(session, AuditAction.BACKUP_RESTORE, "", backup.id, detail=detail, actor=local_user())

    try:
        db.write(work)
    finally:
        db.close()
    with closing(sqlite3.connect(database)) as plain:
        plain.execute("PRAGMA journal_mode=DELETE")  # so that one rename puts all of it in place
    return epoch


def _copy_back(place: Place, layout: Layout, names: list[str], say: Say) -> None:
    store = LocalStore(layout.store_dir)
    try:
        here = set(store.list_manifests())
        for number, name in enumerate(names, 1):
            if number % 10 == 1:
                say(f"Restoring artifact {number} of {len(names)} …")
            if name not in here:
                copy_artifact(place.store, store, name)
    finally:
        store.close()


def _use_own_store(layout: Layout) -> None:
    """Make the restored server use its own copies of the artifacts, not the bucket that the original may still write to."""
    settings = ServerSettings.stored(layout)
    if settings.store:
        from dataclasses import replace

        replace(settings, store="").save(layout)


def _compare(backup: BackupView, database: Path) -> list[str]:
    found, problems = snapshot.row_counts(database), []
    for table in sorted(backup.rows.keys() | found.keys()):
        if backup.rows.get(table) != found.get(table):
            problems.append(
                f"table {table} has {found.get(table, 'no')} rows, and had {backup.rows.get(table, 'no')} when it was saved"
            )
    if snapshot.ledger_head(database) != backup.ledger:
        problems.append("the billing ledger ends with another entry than when it was saved")
    if backup.audit is not None and snapshot.audit_head(database) != backup.audit:
        problems.append("the audit log ends with another entry than when it was saved")
    return problems


def _key_problems(backup: BackupView, database: Path, folder: Path) -> list[str]:
    if not backup.has_keys:
        return []
    key, known = folder / "state" / FILES / "secret.key", snapshot.fact(database, CHECK)
    if not key.exists():
        return ["secret.key is missing"] if known else []
    try:
        matches = known is None or Vault(key).check_value == known
    except ValueError:
        matches = False
    return [] if matches else ["secret.key is not the key this database was encrypted with"]


def _artifact_problems(place: Place, backup: BackupView, database: Path) -> list[str]:
    db = _open(database)
    try:
        with db.read() as session:
            used = used_manifests(session)
    finally:
        db.close()
    saved = set(place.artifacts(backup))
    problems = [f"artifact {name[:12]}… is used but not in the backup" for name in sorted(used - saved)]
    if not backup.has_chunks:
        return problems
    report = check_store(place.store)
    broken = (set(report.hurt) | report.damaged_manifests) & saved
    problems += [f"artifact {name[:12]}… is damaged in the backup" for name in sorted(broken)]
    for name in sorted(saved - broken):
        try:
            place.store.get_manifest(name)
        except NotFound:
            problems.append(f"artifact {name[:12]}… is missing in the backup")
    return problems
