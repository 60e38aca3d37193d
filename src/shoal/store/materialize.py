"""Writing of a manifest's tree: in parallel, verified, and visible in one step or not at all. Never writes outside `dest`."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from shoal.core import system
from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.errors import Corrupt, InvalidSpec, NameTaken
from shoal.store import hashing
from shoal.store.files import disk_errors, write_at
from shoal.store.hashing import Data
from shoal.store.io.adaptive_pool import AdaptivePool
from shoal.store.manifest import check_manifest
from shoal.store.pack import THREADS, Progress

GetChunk = Callable[[str], bytes]
GetMany = Callable[[Iterable[str]], Iterator[tuple[str, Data]]]
"""Function that yields chunks by hash, in any order. Their bytes may be views of a larger buffer."""
Donor = Callable[[FileEntry], Path | None]

_SMALL_GROUP = 64
_PART = 4 << 20
"""Bytes of a large file that are fetched and written together."""
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.NOFOLLOW | system.CLOEXEC
_FOLDER = os.O_RDONLY | system.DIRECTORY | system.NOFOLLOW | system.CLOEXEC


def materialize(
    manifest: Manifest,
    get: GetChunk | GetMany,
    dest: Path,
    *,
    many: bool = False,
    verify: bool = True,
    read_only: bool = False,
    merge: bool = False,
    stamp_s: int | None = None,
    donor: Donor | None = None,
    threads: int = THREADS,
    progress: Progress | None = None,
) -> None:
    """Write the manifest's files to `dest`.

    Args:
        manifest: The tree to write.
        get: Returns one chunk by hash or, with `many`, yields several.
        dest: Must not exist or be an empty folder, unless `merge`.
        many: `get` takes several hashes.
        verify: Compare every chunk with its hash; False if `get` has done so.
        read_only: Give files mode 0444/0555 and folders 0555.
        merge: `dest` may contain other files; files with the same path are replaced.
        stamp_s: mtime of every file.
        donor: Returns an existing file of the same content and mode to link to, or None.
        threads: Threads that write.
        progress: Called with the bytes just written.
    """
    check_manifest(manifest)
    dest = Path(dest)
    if (
        not merge
        and (dest.is_symlink() or dest.exists())
        and (not dest.is_dir() or dest.is_symlink() or any(dest.iterdir()))
    ):
        raise NameTaken(f"{dest} exists already.", hint="Choose another destination, or remove it first.")
    with disk_errors(dest):
        dest.parent.mkdir(parents=True, exist_ok=True)
        # The temporary folder of a merge is inside `dest`, which may be on another disk than its parent.
        home = dest if merge and dest.exists() else dest.parent
        aside = home / f".{dest.name[:100]}.{secrets.token_hex(6)}.tmp"
        aside.mkdir(mode=0o700)
        try:
            style = _Style(verify, read_only, stamp_s, donor or (lambda _: None))
            get_many = cast(GetMany, get) if many else _one_by_one(cast(GetChunk, get))
            workers = 1 if many else threads
            with _Writer(aside, get_many, style, threads, progress or (lambda _: None), workers=workers) as writer:
                writer.run(manifest)
            if home == dest:
                _merge(manifest, aside, dest)
            else:
                aside.rename(dest)
        except BaseException:
            remove_tree(aside)
            raise
        if home == dest:
            remove_tree(aside)


def remove_tree(path: Path) -> None:
    """Delete a tree, also read-only folders; errors are ignored."""
    for folder, _, _ in os.walk(path):
        Path(folder).chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Style:
    verify: bool
    read_only: bool
    stamp_s: int | None
    donor: Donor


class _Writer:
    """Writes into a new private folder and creates every subfolder itself, so that no path can lead outside."""

    def __init__(self, root: Path, get_many: GetMany, style: _Style, threads: int, progress: Progress, *, workers: int):
        self._root = str(root)
        self._get = get_many
        self._style = style
        self._progress = progress
        self._threads, self._workers = threads, workers
        self._open: set[_Target] = set()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="shoal-write")

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for target in self._open:
            os.close(target.fd)

    def run(self, manifest: Manifest) -> None:
        folders = sorted({f.path.rpartition("/")[0] for f in manifest.files} - {""})
        made = {""}
        for folder in folders:
            self._make(folder, made)
        small, large = self._sorted(manifest)
        groups = (small[at : at + _SMALL_GROUP] for at in range(0, len(small), _SMALL_GROUP))
        small_files = AdaptivePool(self._pool, (partial(self._small, group) for group in groups))
        small_files.start(self._workers)
        parts = (work for file in large for work in self._large(file))
        running: set[Future[Any]] = small_files.started()
        for work in parts:
            if len(running) >= 4 * self._threads:
                running = _wait_for_one(running) | small_files.started()
            running.add(self._pool.submit(work))
        while running:
            running = _wait_for_one(running) | small_files.started()
        mode = 0o555 if self._style.read_only else 0o755
        for folder in sorted(made, reverse=True):
            Path(self._root, folder).chmod(mode)

    def _make(self, folder: str, made: set[str]) -> None:
        if folder not in made:
            self._make(folder.rpartition("/")[0], made)
            Path(self._root, folder).mkdir(0o700)
            made.add(folder)

    def _sorted(self, manifest: Manifest) -> tuple[list[FileEntry], list[FileEntry]]:
        """Link files that have a donor; return the rest as files of at most one chunk, and larger ones."""
        small: list[FileEntry] = []
        large: list[FileEntry] = []
        for file in manifest.files:
            if not self._linked(file):
                (large if len(file.chunks) > 1 else small).append(file)
        return small, large

    def _small(self, files: list[FileEntry]) -> None:
        users: dict[str, list[FileEntry]] = {}
        for file in files:
            if file.chunks:
                users.setdefault(file.chunks[0].hash, []).append(file)
            else:
                self._close(self._create(file))
        for name, data in self._get(users):
            for file in users[name]:
                self._check(file.chunks[0], data)
                fd = self._create(file)
                try:
                    write_at(fd, [data], 0)
                finally:
                    self._close(fd)
                self._progress(file.size)

    def _linked(self, file: FileEntry) -> bool:
        donor = self._style.donor(file) if file.size else None
        if donor is None:
            return False
        try:
            os.link(donor, f"{self._root}/{file.path}", follow_symlinks=False)
        except OSError:  # gone, too many links, another disk
            return False
        self._progress(file.size)
        return True

    def _close(self, fd: int) -> None:
        try:
            if self._style.stamp_s is not None:
                os.utime(fd, (self._style.stamp_s, self._style.stamp_s))
        finally:
            os.close(fd)

    def _large(self, file: FileEntry) -> Iterator[Callable[[], None]]:
        parts = list(_parts(file))
        target = _Target(self._create(file), len(parts), self._close)
        self._open.add(target)
        for part in parts:
            yield partial(self._part, target, part)

    def _part(self, target: _Target, part: list[tuple[int, Chunk]]) -> None:
        """Fetch neighbouring chunks of a file together and write them with as few calls as possible."""
        places: dict[str, list[tuple[int, Chunk]]] = {}
        for offset, chunk in part:
            places.setdefault(chunk.hash, []).append((offset, chunk))
        got: list[tuple[int, Data]] = []
        for name, data in self._get(places):
            for offset, chunk in places[name]:
                self._check(chunk, data)
                got.append((offset, data))
        got.sort(key=lambda pair: pair[0])
        write_at(target.fd, [data for _, data in got], part[0][0])
        self._progress(sum(chunk.size for _, chunk in part))
        if target.one_done():
            self._open.discard(target)

    def _create(self, file: FileEntry) -> int:
        mode = (0o555 if file.executable else 0o444) if self._style.read_only else (0o755 if file.executable else 0o644)
        return os.open(f"{self._root}/{file.path}", _NEW_FILE, mode)

    def _check(self, chunk: Chunk, data: Data) -> None:
        if len(data) != chunk.size:
            raise Corrupt(f"Chunk {chunk.hash[:12]}… has {len(data)} bytes; the manifest says {chunk.size}.")
        if self._style.verify:
            hashing.verify(chunk.hash, data)


def _one_by_one(get: GetChunk) -> GetMany:
    return lambda names: ((name, get(name)) for name in names)


def _parts(file: FileEntry) -> Iterator[list[tuple[int, Chunk]]]:
    """Yield lists of (offset, chunk) of a file, each of a few megabytes."""
    part: list[tuple[int, Chunk]] = []
    start = offset = 0
    for chunk in file.chunks:
        if part and offset + chunk.size - start > _PART:
            yield part
            part, start = [], offset
        part.append((offset, chunk))
        offset += chunk.size
    if part:
        yield part


class _Target:
    """A file that several threads write. The last one closes it; `_lock` protects the count of unfinished parts."""

    def __init__(self, fd: int, left: int, close: Callable[[int], None]):
        self.fd = fd
        self._close = close
        self._left = left
        self._lock = threading.Lock()

    def one_done(self) -> bool:
        with self._lock:
            self._left -= 1
            if self._left:
                return False
        self._close(self.fd)
        return True


def _merge(manifest: Manifest, aside: Path, dest: Path) -> None:
    """Rename files one by one into a folder that others may write to, never following a link."""
    root = os.open(dest, os.O_RDONLY | system.DIRECTORY | system.CLOEXEC)
    try:
        for file in manifest.files:
            *folders, name = file.path.split("/")
            here = os.dup(root)
            try:
                for folder in folders:
                    try:
                        os.mkdir(folder, dir_fd=here)
                    except FileExistsError:
                        pass
                    below = os.open(folder, _FOLDER, dir_fd=here)
                    os.close(here)
                    here = below
                os.rename(aside / file.path, name, dst_dir_fd=here)
            except (NotADirectoryError, IsADirectoryError, OSError) as error:
                raise InvalidSpec(f"{file.path} cannot be written into {dest}: {error.strerror}.") from error
            finally:
                os.close(here)
    finally:
        os.close(root)


def _wait_for_one(running: set[Future[Any]]) -> set[Future[Any]]:
    """Wait until one future is done; raise its error, or return those still running."""
    done, running = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        future.result()
    return running
