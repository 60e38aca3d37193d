"""Cache of chunks on this machine's disk, for all processes that stream. Bounded in size; the least recently used go first.

Nothing in it is trusted or required: everything read is compared with its hash, and streaming works without the cache if it
cannot be written. So files need no fsync, and a process killed at any point leaves at most a stray file, which a later sweep
removes.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from shoal.core import system
from shoal.core.errors import Corrupt
from shoal.core.settings import Layout
from shoal.store.hashing import Data, verify

logger = logging.getLogger(__name__)

DEFAULT_GB = 20.0
DISK_RESERVE = 1 << 30
"""Bytes of the disk that the cache leaves free."""
_UNIT = 4 << 10
"""Bytes of chunks per byte of the counter file."""
_UNUSED_S = {"tmp": 3600.0, "counts": 30 * 86400.0, "manifests": 30 * 86400.0}
"""Folder → seconds after which its unused files are removed (chunks are removed by size instead)."""
_TOUCH_S = 60.0
_POLL_S = 0.02


def cache_dir() -> Path:
    """Return the directory of the cache: SHOAL_DATA_CACHE, else below the data directory."""
    given = os.environ.get("SHOAL_DATA_CACHE")
    return Path(given).expanduser().absolute() if given else Layout().cache_dir / "stream"


def cache_limit() -> int:
    """Return the maximum size of the cache in bytes: SHOAL_DATA_CACHE_GB, else 20 GB."""
    try:
        return int(float(os.environ.get("SHOAL_DATA_CACHE_GB") or DEFAULT_GB) * 1e9)
    except ValueError:
        logger.warning("SHOAL_DATA_CACHE_GB is not a number; the default of %g is used.", DEFAULT_GB)
        return int(DEFAULT_GB * 1e9)


class ChunkCache:
    """Cache of chunks in a directory that any number of processes may share. `limit` 0 keeps nothing."""

    def __init__(self, root: Path, limit: int):
        self.root, self.limit = root, limit
        self._slack = max(limit // 20, 1)
        self._is_off = limit <= 0

    def get(self, name: str) -> bytes | None:
        """Return the chunk if it is in the cache and undamaged, else None; a damaged one is removed."""
        path = self._path(name)
        try:
            with path.open("rb") as file:
                data = file.read()
                if time.time() - os.fstat(file.fileno()).st_mtime > _TOUCH_S:
                    with suppress(OSError):
                        os.utime(file.fileno())
        except OSError:
            return None
        try:
            verify(name, data)
        except Corrupt:
            logger.warning("%s is damaged and will be fetched again.", path)
            with suppress(OSError):
                path.unlink()
            return None
        return data

    def put(self, name: str, data: Data) -> None:
        if self._is_off or len(data) > self.limit:
            return
        path = self._path(name)
        aside = self.root / "tmp" / secrets.token_hex(12)
        try:
            _write(aside, data)
            path.parent.mkdir(parents=True, exist_ok=True)
            aside.rename(path)
            if self._count(len(data)) > self._slack:
                self.sweep()
        except OSError as error:
            with suppress(OSError):
                aside.unlink()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self.sweep()
            elif not self._is_off:
                self._is_off = True
                logger.warning(
                    "%s cannot be written (%s): streaming continues without a cache on disk.", self.root, error
                )

    @contextmanager
    def claim(self, names: Iterable[str]) -> Iterator[set[str]]:
        """Claim the `names` that no other process is fetching; yield those. Others see them as claimed until the end."""
        wanted = list(names)
        if self._is_off:
            yield set(wanted)
            return
        with ExitStack() as held:
            won = {prefix for prefix in sorted({_prefix(n) for n in wanted}) if self._lock(prefix, held)}
            yield {n for n in wanted if _prefix(n) in won}

    def wait(self, name: str, timeout_s: float) -> bytes | None:
        """Return the chunk when the process that claims it is done; None if that fails, dies or exceeds `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with self.claim([name]) as free:
                if free:
                    break
            time.sleep(_POLL_S)
        return self.get(name)

    def sweep(self) -> None:
        """Remove files until the cache is below its limit, unless another process is doing it."""
        with ExitStack() as held:
            if not self._lock("sweep", held):
                return
            with suppress(OSError):
                os.truncate(self.root / "written", 0)
            for folder, age_s in _UNUSED_S.items():
                _drop_older(self.root / folder, age_s)
            kept = sorted(_files(self.root / "chunks"))
            total = sum(size for _, size, _ in kept)
            limit = min(self.limit, total + shutil.disk_usage(self.root).free - DISK_RESERVE)
            if total <= limit - self._slack:
                return
            for _, size, path in kept:
                if total <= limit * 0.9:
                    break
                with suppress(FileNotFoundError):
                    Path(path).unlink()
                total -= size

    def _path(self, name: str) -> Path:
        return self.root / "chunks" / name[:2] / name

    def _count(self, size: int) -> int:
        """Add `size` to the bytes that all processes have written since the last sweep; return the sum.

        The shared counter is the length of an append-only file.
        """
        fd = os.open(self.root / "written", os.O_WRONLY | os.O_CREAT | os.O_APPEND | system.CLOEXEC, 0o600)
        try:
            os.write(fd, b"." * -(-size // _UNIT))
            return os.fstat(fd).st_size * _UNIT
        finally:
            os.close(fd)

    def _lock(self, name: str, held: ExitStack) -> bool:
        """Acquire a lock without waiting; return whether it was acquired.

        A lock file that cannot be used counts as acquired: locks only avoid duplicate work.
        """
        try:
            path = self.root / "locks" / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | system.CLOEXEC, 0o600)
        except OSError:
            return True
        held.callback(os.close, fd)
        try:
            system.flock(fd, system.LOCK_EX | system.LOCK_NB)
        except OSError as error:
            return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
        return True


def _prefix(name: str) -> str:
    return name[:3]


def _write(path: Path, data: Data) -> None:
    try:
        file = path.open("xb")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = path.open("xb")
    with file:
        file.write(data)


def _files(folder: Path) -> Iterator[tuple[float, int, str]]:
    """Yield (last use, size, path) of every chunk."""
    with suppress(FileNotFoundError):
        for sub in os.scandir(folder):
            with suppress(FileNotFoundError, NotADirectoryError):
                for entry in os.scandir(sub.path):
                    with suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        yield found.st_mtime, found.st_size, entry.path


def _drop_older(folder: Path, age_s: float) -> None:
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with suppress(FileNotFoundError):
                if time.time() - entry.stat().st_mtime > age_s:
                    Path(entry.path).unlink()
