"""The place of backups: a folder or bucket with a store of its own.

    backups/bak_….json   one small file per backup; it is written last, so a backup without it does not exist
    revoked/KIND~ID      everything that was ever revoked; kept longer than backups, and applied to every restore
    chunks/ packs/ manifests/ …   a store: artifacts, and one tree per backup with the database and the key files

Because the database is cut into chunks like any other file, a second backup adds only what has changed, also within it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from shoal.core.backups import FORMAT, BackupView
from shoal.core.errors import Corrupt, InvalidSpec, NotAllowedNow, NotFound, Refused
from shoal.core.ids import is_id
from shoal.core.settings import Layout
from shoal.store.blobstore import BlobStore, key_name
from shoal.store.gc import collect
from shoal.store.local import LocalStore

ARTIFACTS = "artifacts.txt"
"""File in a backup's tree with the ids of all artifacts, one in each line."""
GRACE_S = 86_400.0
"""Age below which nothing is removed from a place: another server may be writing a backup there."""
_HEADS, _REVOKED = "backups/", "revoked/"


class Place:
    """Folder or bucket with backups, of one server or several."""

    def __init__(self, url: str | Path):
        self.url = str(url)
        self.store = _open(self.url)

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def backups(self) -> list[BackupView]:
        """Return all backups, newest first."""
        names = [blob.key for blob in self.store.blobs.list(_HEADS) if blob.key.endswith(".json")]
        return sorted((self._read(name) for name in names), key=lambda b: (b.made_at, b.id), reverse=True)

    def find(self, backup_id: str | None) -> BackupView:
        """Return a backup, or the newest one without an id."""
        if backup_id is not None and not is_id(backup_id, "bak"):
            raise InvalidSpec(f"{backup_id!r} is not the id of a backup.", hint="shoal server backup list")
        if backup_id is None:
            if found := self.backups():
                return found[0]
            raise NotFound(f"There is no backup at {self.url}.", hint="shoal server backup create PLACE")
        if not self.store.blobs.present([name := f"{_HEADS}{backup_id}.json"]):
            raise NotFound(f"There is no backup {backup_id} at {self.url}.", hint="shoal server backup list")
        return self._read(name)

    def add(self, backup: BackupView) -> None:
        """Publish a backup whose tree and artifacts are stored already."""
        self.store.blobs.put([(f"{_HEADS}{backup.id}.json", [backup.model_dump_json(indent=1).encode()])])

    def artifacts(self, backup: BackupView) -> list[str]:
        """Return the ids of the artifacts of a backup."""
        for file in self.store.get_manifest(backup.state).files:
            if file.path == ARTIFACTS:
                return b"".join(self.store.get(chunk.hash) for chunk in file.chunks).decode().split()
        raise Corrupt(f"Backup {backup.id} has no list of artifacts.")

    def revoke(self, kinds_and_ids: Iterable[tuple[str, str]]) -> None:
        """Add to the list of what was revoked."""
        wanted = {f"{_REVOKED}{kind}~{id_}" for kind, id_ in kinds_and_ids}
        new = wanted - self.store.blobs.present(wanted)
        self.store.blobs.put([(key, [b""]) for key in sorted(new)])

    def pardon(self, kinds_and_ids: Iterable[tuple[str, str]]) -> None:
        """Remove from the list what has been allowed again, such as an account that was enabled."""
        keys = [f"{_REVOKED}{kind}~{id_}" for kind, id_ in kinds_and_ids]
        self.store.blobs.delete(sorted(self.store.blobs.present(keys)))

    def revoked(self) -> tuple[set[tuple[str, str]], datetime | None]:
        """Return (kind, id) of everything that was revoked, and the time of the newest entry."""
        blobs = list(self.store.blobs.list(_REVOKED))
        found = {(kind, id_) for blob in blobs for kind, _, id_ in [blob.key.removeprefix(_REVOKED).partition("~")]}
        newest = max((blob.modified for blob in blobs), default=None)
        return found, None if newest is None else datetime.fromtimestamp(newest, UTC)

    def prune(self, instance: str, keep: int, *, grace_s: float = GRACE_S) -> list[str]:
        """Remove the oldest backups of an instance, and the data that no backup of any instance needs; return their ids."""
        backups = self.backups()
        old = [b for b in backups if b.instance == instance][max(1, keep) :]
        if not old:
            return []
        self.store.blobs.delete([f"{_HEADS}{b.id}.json" for b in old])
        gone = {b.id for b in old}
        needed: set[str] = set()
        for backup in backups:
            if backup.id not in gone:
                needed |= {backup.state, *self.artifacts(backup)}
        before = time.time() - grace_s
        for blob in list(self.store.blobs.list("manifests/")):
            if key_name(blob.key) not in needed and blob.modified <= before:
                self.store.delete_manifest(key_name(blob.key))
        collect(self.store, grace_s=grace_s)
        return sorted(gone)

    def _read(self, key: str) -> BackupView:
        try:
            found = BackupView.model_validate_json(self.store.blobs.get(key))
        except (ValidationError, UnicodeDecodeError) as error:
            raise Corrupt(f"{self.url}/{key} is damaged: it does not describe a backup.") from error
        if found.format > FORMAT:
            raise Refused(
                f"Backup {found.id} was made by Shoal {found.version}, in a format that this version cannot read.",
                hint=f"pip install 'shoal-train[server]>={found.version}'",
            )
        return found


@contextmanager
def undisturbed(layout: Layout) -> Iterator[None]:
    """Hold the lock between backups and garbage collection of one data directory, in any process.

    A backup copies the database first and the artifacts second. A collection between the two could delete artifacts of the
    copied database. The kernel releases the lock with its process.
    """
    layout.server_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(layout.server_dir / "backup.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NotAllowedNow(
                "Another backup or garbage collection of this server is running. Try again when it has ended."
            ) from None
        yield
    finally:
        os.close(fd)


def _open(url: str) -> BlobStore:
    if url.startswith("s3://"):
        from shoal.store.s3 import S3Store

        return S3Store(url)
    folder = Path(url.removeprefix("file://")).expanduser().absolute()
    if "://" in url and not url.startswith("file://"):
        raise InvalidSpec(f"{url!r} is not a place for backups: give a folder or an s3:// URL.")
    if folder.exists() and not folder.is_dir():
        raise InvalidSpec(f"{folder} is not a folder.")
    if not folder.exists():
        folder.mkdir(parents=True, mode=0o700)
    return LocalStore(folder)
