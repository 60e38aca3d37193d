"""Blobs as files: written to a temporary file, fsynced, renamed into place, folder fsynced. Also file helpers."""

# ruff: noqa: PTH104, PTH108, PTH120 - strings, because a Path object costs more than the system call it is for
from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.core import system
from shoal.core.durable import sync
from shoal.core.errors import NotFound, StorageFull
from shoal.store.blobs import Blob, Blobs, Growing, Staged
from shoal.store.hashing import Data
from shoal.store.io.buffers import Buffers
from shoal.store.io.direct import BLOCK, DirectWriter, read_once

_TMP = "tmp/-"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.CLOEXEC
_DIRECT_FROM = 1 << 20
_ALIGNING = 8 << 10
_READ, _READ_SMALL = (8 << 20) + _ALIGNING, (768 << 10) + _ALIGNING
"""Sizes of read buffers, with room for alignment: for many neighbouring chunks, or for about one chunk."""
_MOST_VIEWS = 1024
"""Buffers per system call (IOV_MAX)."""
_SYNC_THREADS = 8
"""Threads that sync files. The kernel merges concurrent flushes: eight threads are about three times as fast as one."""


class LocalBlobs(Blobs):
    """Blob storage in a directory."""

    align = BLOCK

    def __init__(self, root: Path):
        self.root = root
        self._folders: set[str] = set()
        self._direct = DirectWriter()
        self._small, self._large = Buffers(_READ_SMALL, keep=64), Buffers(_READ, keep=4)

    def put(self, items: Sequence[tuple[str, Sequence[Data]]]) -> None:
        staged: list[Staged] = []
        try:
            for key, pieces in items:
                staged.append(self.stage(key, pieces))
            self.publish(staged)
        except BaseException:
            self.discard(staged)
            raise

    def stage(self, key: str, pieces: Sequence[Data]) -> Staged:
        with disk_errors(self.root):
            staged = Staged(key, f"{self._folder(_TMP)}/{secrets.token_hex(12)}")
            try:
                self._write(staged.place, pieces)
            except BaseException:
                self.discard([staged])
                raise
        return staged

    def probe(self) -> None:
        self.discard([self.stage("tmp/probe", [b"ok"])])

    def grow(self) -> Growing:
        with disk_errors(self.root):
            return _GrowingFile(f"{self._folder(_TMP)}/{secrets.token_hex(12)}", self._direct, self.root)

    def publish(self, staged: Sequence[Staged]) -> None:
        with disk_errors(self.root):
            _sync_files([blob.place for blob in staged])
            folders = {self._folder(blob.key) for blob in staged}
            for blob in staged:
                os.rename(blob.place, self._path(blob.key))
            _sync_files(sorted(folders))

    def discard(self, staged: Sequence[Staged]) -> None:
        for blob in staged:
            with suppress(OSError):
                os.unlink(blob.place)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        with disk_errors(self.root):
            fd = self._open(key)
            try:
                return read_exact(fd, os.fstat(fd).st_size - start if length is None else length, start)
            finally:
                os.close(fd)

    def view(self, key: str, start: int, length: int, *, once: bool = False) -> memoryview:
        with disk_errors(self.root):
            buffers = self._small if length <= _READ_SMALL - _ALIGNING else self._large
            fd = self._open(key)
            try:
                if once:
                    return read_once(fd, length, start, buffers)
                view = buffers.lend(length)
                return view[: read_into(fd, view, start)]
            finally:
                os.close(fd)

    def present(self, keys: Iterable[str]) -> set[str]:
        return {key for key in keys if os.access(self._path(key), os.F_OK)}

    def list(self, prefix: str) -> Iterator[Blob]:
        pending = [self.root / prefix]
        while pending:
            try:
                entries = list(os.scandir(pending.pop()))
            except FileNotFoundError:
                continue
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
                        continue
                    stat = entry.stat(follow_symlinks=False)
                    yield Blob(os.path.relpath(entry.path, self.root), stat.st_size, stat.st_mtime)

    def move(self, key: str, to: str) -> bool:
        with disk_errors(self.root):
            folder = self._folder(to)
            try:
                os.rename(self._path(key), self._path(to))
            except FileNotFoundError:
                return False
            sync(folder)
            sync(os.path.dirname(self._path(key)))
            return True

    def delete(self, keys: Iterable[str]) -> None:
        folders = set()
        with disk_errors(self.root):
            for key in keys:
                with suppress(FileNotFoundError):
                    os.unlink(self._path(key))
                    folders.add(os.path.dirname(self._path(key)))
            for folder in folders:
                sync(folder)

    def make_durable(self, keys: Iterable[str]) -> None:
        with disk_errors(self.root):
            for folder in {os.path.dirname(self._path(key)) for key in keys}:
                with suppress(FileNotFoundError):
                    sync(folder)

    def _open(self, key: str) -> int:
        try:
            return os.open(self._path(key), os.O_RDONLY | system.CLOEXEC)
        except FileNotFoundError as error:
            raise NotFound(f"The store holds no {key!r}.") from error

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}"

    def _folder(self, key: str) -> str:
        """Return the folder of a key, created durably if necessary."""
        folder = os.path.dirname(self._path(key))
        if folder not in self._folders:
            make_folder(Path(folder))
            self._folders.add(folder)
        return folder

    def _write(self, path: str, pieces: Sequence[Data]) -> None:
        fd = os.open(path, _NEW_FILE, 0o644)
        try:
            if sum(len(p) for p in pieces) < _DIRECT_FROM or not self._direct.write(fd, pieces):
                write_at(fd, pieces, 0)
        finally:
            os.close(fd)


class _GrowingFile(Growing):
    def __init__(self, place: str, direct: DirectWriter, root: Path):
        self._place, self._direct, self._root = place, direct, root
        self._fd = os.open(place, _NEW_FILE, 0o644)

    def write(self, pieces: Sequence[Data], start: int) -> None:
        with disk_errors(self._root):
            if sum(len(p) for p in pieces) < _DIRECT_FROM or not self._direct.write(self._fd, pieces, start):
                write_at(self._fd, pieces, start)

    def finish(self, key: str, head: Data) -> Staged:
        with disk_errors(self._root):
            write_at(self._fd, [head], 0)
        self._close()
        return Staged(key, self._place)

    def abandon(self) -> None:
        self._close()
        with suppress(OSError):
            os.unlink(self._place)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turn a full disk or quota into StorageFull; other OSErrors pass."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(
                f"The disk holding {where} is full. Free some space and try again; nothing was lost."
            ) from error
        raise


def write_at(fd: int, pieces: Sequence[Data], start: int) -> None:
    """Write all pieces one after another from `start`, in as many calls as necessary."""
    views = [memoryview(p).cast("B") for p in pieces if len(p)]
    first = 0
    while first < len(views):
        done = os.pwritev(fd, views[first : first + _MOST_VIEWS], start)
        start += done
        while first < len(views) and done >= len(views[first]):
            done -= len(views[first])
            first += 1
        if done:
            views[first] = views[first][done:]


def read_exact(fd: int, length: int, start: int) -> bytes:
    """Return up to `length` bytes from `start`; fewer only at the end of the file."""
    data = os.pread(fd, length, start)
    if len(data) == length or not data:
        return data
    parts = [data]
    have = len(data)
    while have < length and (more := os.pread(fd, length - have, start + have)):
        parts.append(more)
        have += len(more)
    return b"".join(parts)


def read_into(fd: int, view: memoryview, start: int) -> int:
    """Fill the view from offset `start`; return the bytes read, fewer than its size only at the end of the file."""
    have = 0
    while have < len(view) and (done := os.preadv(fd, [view[have:]], start + have)):
        have += done
    return have


def make_folder(path: Path) -> None:
    """Create a folder and its parents so that they survive a power failure."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def _sync_files(paths: Sequence[str]) -> None:
    if len(paths) <= _SYNC_THREADS:
        for path in paths:
            sync(path)
        return
    with ThreadPoolExecutor(_SYNC_THREADS) as pool:
        for _ in pool.map(sync, paths):
            pass
