"""Cache of file trees that jobs on this machine read. A tree is written once, shared, and evicted least recently used first.

Layout: <kind>/<manifest id>/ (the read-only tree) · .locks/<kind>~<id> (lock file; its mtime is the last use, its text the
size and the boot id of the time of writing) · .manifests/<kind>~<id>.

Why it is safe: a tree is used under a shared flock of its lock file, and written or removed under an exclusive one. The
kernel releases a lock when the last process with the file open ends, so SIGKILL frees a tree and workers that inherit the
descriptor keep it. `_lock` compares inodes after locking, because the file may have been deleted and created again while it
waited. Crashes: `materialize` writes to a .tmp folder and renames it, and the note that makes a tree ready is written last,
so a tree without note is written again. A removed tree is renamed to .gone-… first. `_sweep` deletes both kinds of leftovers,
a .tmp folder of another tree only under that tree's lock. Files are not fsynced: trees from before a reboot are hashed first.
"""

from __future__ import annotations

import json
import logging
import os
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.core import system
from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.errors import Corrupt, StorageFull
from shoal.core.names import check_name
from shoal.store.hashing import check_hash
from shoal.store.manifest import dump_manifest, load_manifest, manifest_id
from shoal.store.materialize import GetChunk, materialize, remove_tree
from shoal.store.pack import Entry, Progress, pack_entries

logger = logging.getLogger(__name__)

STAMP_S = 315_532_800
"""mtime of every cached file (1980). A file with another mtime was modified by a job."""
_PATIENCE = 500
"""Attempts to lock a tree before `use` fails."""
_DONORS = 4
"""Trees of the same kind that are searched for equal files to link to."""


@dataclass(slots=True)
class CacheUse:
    """A tree in use. It is not removed until `release`, or until every process with `fd` open has ended."""

    path: Path
    fd: int

    def release(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> CacheUse:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class CachedTree:
    """A tree in the cache."""

    kind: str
    id: str
    size: int
    last_used: float
    in_use: bool


class NodeCache:
    """Cache below a root folder, which any number of processes may share."""

    def __init__(self, root: Path, max_bytes: int):
        self.root = Path(root).absolute()
        self.max_bytes = max_bytes

    def use(
        self,
        kind: str,
        manifest: Manifest,
        get_chunk: GetChunk,
        *,
        verify: bool = True,
        progress: Progress | None = None,
    ) -> CacheUse:
        """Return the manifest's tree in use, and write it if it is not cached. Of several callers one writes, the others wait.

        Raises Corrupt if the tree was modified and cannot be replaced because jobs use it.
        """
        name = manifest_id(manifest)
        for _ in range(_PATIENCE):
            fd = self._lock(kind, name, system.LOCK_SH)  # waits while another process writes or removes it
            if self._is_ready(fd, kind, name, manifest):
                os.utime(fd)
                return CacheUse(self._tree(kind, name), fd)
            os.close(fd)
            # Never wait for the exclusive lock: jobs may hold the shared one for days.
            fd = self._lock(kind, name, system.LOCK_EX | system.LOCK_NB)
            if fd < 0:
                time.sleep(random.uniform(0.001, 0.02))  # noqa: S311  spreads retries, guards nothing
                continue
            try:
                if not self._is_ready(fd, kind, name, manifest) and not self._survived_boot(fd, kind, name, manifest):
                    self._make(fd, kind, name, manifest, get_chunk, verify, progress)
            finally:
                os.close(fd)
        raise Corrupt(f"{self._tree(kind, name)} was modified while jobs use it. Stop those jobs, then try again.")

    def evict(self, max_bytes: int, *, keep: str | None = None) -> int:
        """Remove unused trees, least recently used first, until the rest takes at most `max_bytes`; return the bytes freed."""
        trees = sorted(self.trees(), key=lambda t: t.last_used)
        total, freed = sum(t.size for t in trees), 0
        for tree in trees:
            if total - freed <= max_bytes:
                break
            if tree.id != keep and self._remove(tree.kind, tree.id):
                freed += tree.size
        return freed

    def trees(self) -> Iterator[CachedTree]:
        """Yield all complete trees."""
        try:
            locks = list((self.root / ".locks").iterdir())
        except FileNotFoundError:
            return
        for lock in locks:
            kind, _, name = lock.name.partition("~")
            with suppress(FileNotFoundError):
                fd = os.open(lock, os.O_RDWR | system.CLOEXEC)
                try:
                    note = _read_note(fd)
                    if note and self._tree(kind, name).is_dir():
                        in_use = not _try_lock(fd, system.LOCK_EX | system.LOCK_NB)
                        yield CachedTree(kind, name, int(str(note["size"])), os.fstat(fd).st_mtime, in_use)
                finally:
                    os.close(fd)

    def _make(
        self,
        fd: int,
        kind: str,
        name: str,
        manifest: Manifest,
        get_chunk: GetChunk,
        verify: bool,
        progress: Progress | None,
    ) -> None:
        self._discard(kind, name)
        self._sweep(kind, name)
        self.evict(self.max_bytes - manifest.size, keep=name)

        def write() -> None:
            with _Donors(self, kind, name) as donors:
                materialize(
                    manifest,
                    get_chunk,
                    self._tree(kind, name),
                    verify=verify,
                    read_only=True,
                    stamp_s=STAMP_S,
                    donor=donors.find,
                    progress=progress,
                )

        try:
            write()
        except StorageFull:
            # The limit may be larger than the disk: remove all unused trees and try once more.
            if not self.evict(0, keep=name):
                raise
            write()
        (self.root / ".manifests").mkdir(exist_ok=True)
        (self.root / ".manifests" / f"{kind}~{name}").write_bytes(dump_manifest(manifest))
        _write_note(fd, size=manifest.size)

    def _is_ready(self, fd: int, kind: str, name: str, manifest: Manifest) -> bool:
        note = _read_note(fd)
        return note is not None and note.get("boot") == _boot_id() and self._seems_complete(kind, name, manifest)

    def _seems_complete(self, kind: str, name: str, manifest: Manifest) -> bool:
        tree = self._tree(kind, name)
        if not tree.is_dir():
            return False
        return all(_is_untouched(tree / f.path, f) for f in manifest.files)

    def _survived_boot(self, fd: int, kind: str, name: str, manifest: Manifest) -> bool:
        """Check by hashing whether a tree written before the last reboot is intact, as its files were not fsynced."""
        if _read_note(fd) is None or not self._seems_complete(kind, name, manifest):
            return False
        tree = self._tree(kind, name)
        found = pack_entries([Entry(f.path, tree / f.path, f.executable) for f in manifest.files])
        if manifest_id(found.manifest) != name:
            return False
        _write_note(fd, size=manifest.size)
        return True

    def _remove(self, kind: str, name: str) -> bool:
        fd = self._lock(kind, name, system.LOCK_EX | system.LOCK_NB)
        if fd < 0:
            return False
        try:
            self._discard(kind, name)
            with suppress(FileNotFoundError):
                (self.root / ".manifests" / f"{kind}~{name}").unlink()
            self._lock_path(kind, name).unlink(missing_ok=True)
        finally:
            os.close(fd)
        return True

    def _discard(self, kind: str, name: str) -> None:
        """Rename the tree away in one step, then remove it."""
        aside = self.root / f".gone-{secrets.token_hex(6)}"
        with suppress(FileNotFoundError):
            self._tree(kind, name).rename(aside)
            remove_tree(aside)

    def _sweep(self, kind: str, name: str) -> None:
        """Remove what killed processes left behind while writing or removing trees. The caller holds this tree's lock."""
        for gone in self.root.glob(".gone-*"):
            remove_tree(gone)
        for half in self.root.glob("*/.*.tmp"):
            owner = (half.parent.name, half.name[1:65])
            if owner == (kind, name):
                remove_tree(half)
            elif (fd := self._lock(*owner, system.LOCK_EX | system.LOCK_NB)) >= 0:
                remove_tree(half)
                os.close(fd)

    def _lock(self, kind: str, name: str, how: int) -> int:
        """Return the descriptor of the locked lock file; -1 if `how` has LOCK_NB and another process holds the lock."""
        path = self._lock_path(kind, name)
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | system.CLOEXEC, 0o644)
            if not _try_lock(fd, how):
                os.close(fd)
                return -1
            with suppress(FileNotFoundError):
                if os.fstat(fd).st_ino == path.stat().st_ino:
                    return fd
            os.close(fd)  # deleted, and perhaps created again, while we waited

    def _lock_path(self, kind: str, name: str) -> Path:
        return self.root / ".locks" / f"{check_name(kind)}~{check_hash(name)}"

    def _tree(self, kind: str, name: str) -> Path:
        return self.root / kind / name


class _Donors:
    """Trees of the same kind whose equal files are linked instead of written. They stay locked inside the context."""

    def __init__(self, cache: NodeCache, kind: str, but: str):
        self._files: dict[tuple[object, ...], Path] = {}
        self._held: list[int] = []
        others = sorted((t for t in cache.trees() if t.kind == kind and t.id != but), key=lambda t: -t.last_used)
        for tree in others[:_DONORS]:
            fd = cache._lock(kind, tree.id, system.LOCK_SH | system.LOCK_NB)
            if fd < 0:
                continue
            self._held.append(fd)
            with suppress(Exception):  # an unreadable tree is simply not used
                manifest = load_manifest((cache.root / ".manifests" / f"{kind}~{tree.id}").read_bytes())
                for file in manifest.files:
                    self._files.setdefault(_identity(file), cache._tree(kind, tree.id) / file.path)

    def find(self, file: FileEntry) -> Path | None:
        path = self._files.get(_identity(file))
        return path if path is not None and _is_untouched(path, file) else None

    def __enter__(self) -> _Donors:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._held:
            os.close(fd)


def _identity(file: FileEntry) -> tuple[object, ...]:
    return (file.size, file.executable, *(c.hash for c in file.chunks))


def _is_untouched(path: Path, file: FileEntry) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return found.st_size == file.size and found.st_mtime_ns == STAMP_S * 1_000_000_000


def _try_lock(fd: int, how: int) -> bool:
    try:
        system.flock(fd, how)
    except BlockingIOError:
        return False
    return True


def _read_note(fd: int) -> dict[str, object] | None:
    try:
        note = json.loads(os.pread(fd, 4096, 0))
    except ValueError:
        return None
    return note if isinstance(note, dict) else None


def _write_note(fd: int, *, size: int) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps({"size": size, "boot": _boot_id()}).encode(), 0)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
