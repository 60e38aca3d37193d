"""Making a backup, beside a running server or without one.

Order, and why it is consistent: the database is copied first, then every artifact that is in the store. An artifact is stored
before the row that refers to it is written, so each artifact of the copied rows is among them; `undisturbed` keeps garbage
collections out in between. Artifacts that came later do no harm. The file that describes the backup is written last. A crash
before that leaves data without a backup, which the next `prune` removes.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal import __version__
from shoal.core.audit import AuditAction
from shoal.core.backups import BackupView
from shoal.core.errors import Corrupt, InvalidSpec, NotFound, ShoalError
from shoal.core.ids import new_id
from shoal.core.instance import instance_id
from shoal.core.schema import utcnow
from shoal.core.settings import Layout, ServerSettings
from shoal.server.actor import Actor
from shoal.server.audit.record import record_locally
from shoal.server.backup import revocations, snapshot
from shoal.server.backup.place import ARTIFACTS, GRACE_S, Place, undisturbed
from shoal.store.blobstore import BlobStore
from shoal.store.hasher import Entry
from shoal.store.local import LocalStore
from shoal.store.manifest import chunk_hashes
from shoal.store.transfer import push

logger = logging.getLogger(__name__)

DATABASE, FILES = "shoal.db", "files/"
KEYS = frozenset(
    {
        "secret.key",
        "owner.key",
        "ssh_host.key",
        "ssh_client.key",
        "ssh_ca.key",
        "tls_ca.key",
        "tls_ca.pem",
        "sign_in.toml",
    }
)
OTHERS = frozenset({"settings.toml", "setup.code", "known_hosts", "ssh_port", "door.json"})
"""Files of the server's directory that are saved. The rest belongs to one process, one machine or a cache."""
EPOCH = "epoch"
_TEMPORARY = ".backup-"
_BATCH = 64
"""Chunks that are copied together; they are in memory meanwhile."""


def create(
    layout: Layout,
    settings: ServerSettings,
    place: Place,
    *,
    chunks: bool | None = None,
    keys: bool = True,
    say: Callable[[str], None] = lambda text: None,
    actor: Actor | None = None,
) -> BackupView:
    """Make a backup of a data directory and return its description.

    chunks  copy the artifacts too; None copies them unless the server's store is a bucket
    keys    include secret.key and the other key files; anyone who can read the backup can then decrypt its secrets
    actor   who makes it, for the audit log; by default the user of this machine
    """
    if not layout.database.exists():
        raise NotFound(f"There is no database at {layout.database}.", hint="shoal server start")
    has_chunks = not settings.store if chunks is None else chunks
    with undisturbed(layout), _temporary_folder(layout, place) as folder:
        say("Copying the database …")
        database = folder / DATABASE
        snapshot.copy_database(layout.database, database)
        revocations.export(database, place)
        with open_store(layout, settings) as store:
            names = sorted(store.list_manifests())
            added, unreadable = _copy_artifacts(store, place.store, names, say) if has_chunks else (0, [])
        say("Saving the database …")
        (folder / ARTIFACTS).write_text("".join(f"{name}\n" for name in names if name not in set(unreadable)))
        state, sent = _save_state(layout, folder, place, keys=keys)
        backup = BackupView(
            id=new_id("bak"),
            made_at=utcnow(),
            instance=instance_id(layout) or "",
            epoch=int(snapshot.fact(database, EPOCH) or 0),
            version=__version__,
            database_version=snapshot.version_of(database) or "",
            state=state,
            database_bytes=database.stat().st_size,
            artifacts=len(names) - len(unreadable),
            unreadable=unreadable,
            added_bytes=added + sent,
            has_chunks=has_chunks,
            has_keys=keys,
            store=settings.store,
            rows=snapshot.row_counts(database),
            ledger=snapshot.ledger_head(database),
            audit=snapshot.audit_head(database),
        )
        place.add(backup)
    _record(layout, place, backup, actor)
    return backup


def _record(layout: Layout, place: Place, backup: BackupView, actor: Actor | None) -> None:
    """Record a backup in the audit log. If the server's disk is full or failing, the backup is still worth keeping."""
    where = place.url.partition("?")[0].rpartition("@")[2]  # the rest of a URL may hold credentials
    try:
        record_locally(layout.database, AuditAction.BACKUP_CREATE, where, backup.id, actor=actor)
    except ShoalError as error:
        logger.warning("backup %s is not in the audit log: %s", backup.id, error.message)


@contextmanager
def open_store(layout: Layout, settings: ServerSettings) -> Iterator[BlobStore]:
    """Yield the store of a data directory; it may be used beside that of a running server."""
    if settings.store:
        from shoal.store.s3 import S3Store

        store: BlobStore = S3Store(settings.store)
    else:
        store = LocalStore(layout.store_dir)
    try:
        yield store
    finally:
        store.close()


def copy_artifact(source: BlobStore, to: BlobStore, name: str) -> int:
    """Copy one artifact with the chunks that are missing there; return the bytes copied. Every chunk is verified."""
    manifest = source.get_manifest(name)
    missing, sent = sorted(to.missing(set(chunk_hashes(manifest)))), 0
    for start in range(0, len(missing), _BATCH):
        _, stored = source.stored(missing[start : start + _BATCH])
        chunks = list(stored)
        sent += sum(len(payload) for _, _, payload in chunks)
        to.put_stored(chunks)
    to.put_manifest(manifest)
    return sent


def _copy_artifacts(
    source: BlobStore, to: BlobStore, names: list[str], say: Callable[[str], None]
) -> tuple[int, list[str]]:
    """Copy the artifacts that are not there yet; return the bytes copied and the ids of those that are damaged."""
    here, sent, unreadable = set(to.list_manifests()), 0, []
    new = [name for name in names if name not in here]
    for number, name in enumerate(new, 1):
        if number % 10 == 1:
            say(f"Copying artifact {number} of {len(new)} …")
        try:
            sent += copy_artifact(source, to, name)
        except (Corrupt, NotFound, InvalidSpec) as error:
            # A backup of all the rest is worth more than none; `store check` finds the damage and says how to mend it.
            logger.warning("artifact %s is damaged and not in the backup: %s", name, error.message)
            unreadable.append(name)
    return sent, unreadable


def _save_state(layout: Layout, folder: Path, place: Place, *, keys: bool) -> tuple[str, int]:
    wanted = OTHERS | (KEYS if keys else frozenset())
    entries = [Entry(name, folder / name) for name in (ARTIFACTS, DATABASE)]
    for name in sorted(wanted):
        if (path := layout.server_dir / name).is_file():
            entries.append(Entry(f"{FILES}{name}", path))
    packed, sent = push(entries, place.store)
    return place.store.put_manifest(packed.manifest), sent


@contextmanager
def _temporary_folder(layout: Layout, place: Place) -> Iterator[Path]:
    """Yield a folder for the copy of the database: in the place if it is a folder, as there is space for backups."""
    parent = place.store.root if isinstance(place.store, LocalStore) else layout.server_dir
    for left in parent.glob(f"{_TEMPORARY}*"):  # of a backup that was killed
        if time.time() - left.stat().st_mtime > GRACE_S:
            shutil.rmtree(left, ignore_errors=True)
    path = Path(tempfile.mkdtemp(dir=parent, prefix=_TEMPORARY))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
