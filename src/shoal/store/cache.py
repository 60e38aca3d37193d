"""Trees that jobs of this machine read: written once, shared by all, least recently used ones removed first.

Layout: <kind>/<manifest id>/ (the tree, read-only) · .locks/<kind>~<id> (locked shared while in use, exclusively while made or
removed; its mtime is the last use, its text the size and the boot in which the tree was written). A lock goes with the last
process that holds its file open, so a kill -9 frees the tree, and workers that inherit the file keep it.
"""

from __future__ import annotations

import fcntl
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

from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.errors import Corrupt, StorageFull
from shoal.core.names import check_name
from shoal.store.hashing import check_hash
from shoal.store.manifest import dump_manifest, load_manifest, manifest_id
from shoal.store.materialize import GetChunk, materialize, remove_tree
from shoal.store.pack import Entry, Progress, pack_entries

logger = logging.getLogger(__name__)

STAMP_S = 315_532_800
"""mtime of every cached file (1980): a file with another one was written to by someone."""
_PATIENCE = 500
_DONORS = 4
"""Trees of the same kind that are looked at for equal files to link to."""


@dataclass(slots=True)
class CacheUse:
    """Keeps a tree from being removed until released, or until every process that holds `fd` has ended."""

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
    kind: str
    id: str
    size: int
    last_used: float
    in_use: bool


class NodeCache:
    """Any number of processes may share a root."""

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
        """The manifest's tree, made if it is not there. Several callers for one tree: one makes it, the others wait."""
        name = manifest_id(manifest)
        for _ in range(_PATIENCE):
            fd = self._lock(kind, name, fcntl.LOCK_SH)  # waits while another makes or removes it
            if self._is_ready(fd, kind, name, manifest):
                os.utime(fd)
                return CacheUse(self._tree(kind, name), fd)
            os.close(fd)
            # Never waited for: those who hold it shared by then may do so for days.
            fd = self._lock(kind, name, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if fd < 0:
                time.sleep(random.uniform(0.001, 0.02))  # noqa: S311  spreads retries, guards nothing
                continue
            try:
                if not self._is_ready(fd, kind, name, manifest) and not self._survived_boot(fd, kind, name, manifest):
                    self._make(fd, kind, name, manifest, get_chunk, verify, progress)
            finally:
                os.close(fd)
        raise Corrupt(f"{self._tree(kind, name)} was changed while jobs use it. Stop those jobs, then try again.")

    def evict(self, max_bytes: int, *, keep: str | None = None) -> int:
        """Remove trees not in use, least recently used first, until all take at most this. Returns the bytes freed."""
        trees = sorted(self.trees(), key=lambda t: t.last_used)
        total, freed = sum(t.size for t in trees), 0
        for tree in trees:
            if total - freed <= max_bytes:
                break
            if tree.id != keep and self._remove(tree.kind, tree.id):
                freed += tree.size
        return freed

    def trees(self) -> Iterator[CachedTree]:
        try:
            locks = list((self.root / ".locks").iterdir())
        except FileNotFoundError:
            return
        for lock in locks:
            kind, _, name = lock.name.partition("~")
            with suppress(FileNotFoundError):
                fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
                try:
                    note = _read_note(fd)
                    if note and self._tree(kind, name).is_dir():
                        in_use = not _try_lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
            # The cap may be larger than the disk: give back everything that is not in use, once.
            if not self.evict(0, keep=name):
                raise
            write()
        (self.root / ".manifests").mkdir(exist_ok=True)
        (self.root / ".manifests" / f"{kind}~{name}").write_bytes(dump_manifest(manifest))
        _write_note(fd, size=manifest.size)

    def _is_ready(self, fd: int, kind: str, name: str, manifest: Manifest) -> bool:
        note = _read_note(fd)
        return note is not None and note.get("boot") == _boot_id() and self._looks_whole(kind, name, manifest)

    def _looks_whole(self, kind: str, name: str, manifest: Manifest) -> bool:
        tree = self._tree(kind, name)
        if not tree.is_dir():
            return False
        return all(_is_untouched(tree / f.path, f) for f in manifest.files)

    def _survived_boot(self, fd: int, kind: str, name: str, manifest: Manifest) -> bool:
        """Files are not fsynced: after a reboot they are read once and compared before anyone uses them."""
        if _read_note(fd) is None or not self._looks_whole(kind, name, manifest):
            return False
        tree = self._tree(kind, name)
        found = pack_entries([Entry(f.path, tree / f.path, f.executable) for f in manifest.files])
        if manifest_id(found.manifest) != name:
            return False
        _write_note(fd, size=manifest.size)
        return True

    def _remove(self, kind: str, name: str) -> bool:
        fd = self._lock(kind, name, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        """In one step out of sight, then removed."""
        aside = self.root / f".gone-{secrets.token_hex(6)}"
        with suppress(FileNotFoundError):
            self._tree(kind, name).rename(aside)
            remove_tree(aside)

    def _sweep(self, kind: str, name: str) -> None:
        """What processes killed while making or removing a tree left behind. The caller holds this tree's lock."""
        for gone in self.root.glob(".gone-*"):
            remove_tree(gone)
        for half in self.root.glob("*/.*.tmp"):
            owner = (half.parent.name, half.name[1:65])
            if owner == (kind, name):
                remove_tree(half)
            elif (fd := self._lock(*owner, fcntl.LOCK_EX | fcntl.LOCK_NB)) >= 0:
                remove_tree(half)
                os.close(fd)

    def _lock(self, kind: str, name: str, how: int) -> int:
        """An open, locked file; -1 if LOCK_NB was asked for and another holds it."""
        path = self._lock_path(kind, name)
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if not _try_lock(fd, how):
                os.close(fd)
                return -1
            with suppress(FileNotFoundError):
                if os.fstat(fd).st_ino == path.stat().st_ino:
                    return fd
            os.close(fd)  # removed and perhaps made anew while we waited

    def _lock_path(self, kind: str, name: str) -> Path:
        return self.root / ".locks" / f"{check_name(kind)}~{check_hash(name)}"

    def _tree(self, kind: str, name: str) -> Path:
        return self.root / kind / name


class _Donors:
    """Trees of the same kind, kept in use for a while, whose files may be linked to instead of being written again."""

    def __init__(self, cache: NodeCache, kind: str, but: str):
        self._files: dict[tuple[object, ...], Path] = {}
        self._held: list[int] = []
        others = sorted((t for t in cache.trees() if t.kind == kind and t.id != but), key=lambda t: -t.last_used)
        for tree in others[:_DONORS]:
            fd = cache._lock(kind, tree.id, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if fd < 0:
                continue
            self._held.append(fd)
            with suppress(Exception):  # a donor that cannot be read is none
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
        fcntl.flock(fd, how)
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
