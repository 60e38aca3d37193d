"""From a manifest to a tree: parallel, verified, and in place in one step or not at all. Never writes outside `dest`."""

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

from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.errors import Corrupt, InvalidSpec, NameTaken
from shoal.store import hashing
from shoal.store.crew import Crew
from shoal.store.files import disk_errors, write_at
from shoal.store.hashing import Data
from shoal.store.manifest import check_manifest
from shoal.store.pack import THREADS, Progress

GetChunk = Callable[[str], bytes]
GetMany = Callable[[Iterable[str]], Iterator[tuple[str, Data]]]
"""Chunks by name, in any order; their bytes may be views of one larger piece of memory."""
Donor = Callable[[FileEntry], Path | None]

_SMALL_GROUP = 64
_PART = 4 << 20
"""Bytes of a large file that are got and written together."""
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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

    `dest` must not exist or be an empty folder; with `merge` it may hold other files, and ones of the same path are replaced.
    `get` gives one chunk or, if `many`, several. `verify=False` when it has compared hashes itself. `read_only` leaves files 0444/0555 and folders 0555. `stamp_s`
    is every file's mtime. `donor` names an existing file of the same content and mode to link to, if there is one.
    """
    check_manifest(manifest)
    dest = Path(dest)
    if (
        not merge
        and (dest.is_symlink() or dest.exists())
        and (not dest.is_dir() or dest.is_symlink() or any(dest.iterdir()))
    ):
        raise NameTaken(f"{dest} exists already.", hint="Give another place, or remove it first.")
    with disk_errors(dest):
        dest.parent.mkdir(parents=True, exist_ok=True)
        # Inside where it exists: that may be another disk than its parent.
        home = dest if merge and dest.exists() else dest.parent
        aside = home / f".{dest.name[:100]}.{secrets.token_hex(6)}.tmp"
        aside.mkdir(mode=0o700)
        try:
            style = _Style(verify, read_only, stamp_s, donor or (lambda _: None))
            get_many = cast(GetMany, get) if many else _one_by_one(cast(GetChunk, get))
            crew = 1 if many else threads
            with _Writer(aside, get_many, style, threads, progress or (lambda _: None), crew=crew) as writer:
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
    """rm -rf that also takes read-only folders."""
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
    """Writes into a private new folder in which every folder is made by itself: no path can lead outside."""

    def __init__(self, root: Path, get_many: GetMany, style: _Style, threads: int, progress: Progress, *, crew: int):
        self._root = str(root)
        self._get = get_many
        self._style = style
        self._progress = progress
        self._threads, self._crew = threads, crew
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
        crew = Crew(self._pool, (partial(self._small, group) for group in groups))
        crew.start(self._crew)
        parts = (work for file in large for work in self._large(file))
        running: set[Future[Any]] = crew.started()
        for work in parts:
            if len(running) >= 4 * self._threads:
                running = _one_less(running) | crew.started()
            running.add(self._pool.submit(work))
        while running:
            running = _one_less(running) | crew.started()
        mode = 0o555 if self._style.read_only else 0o755
        for folder in sorted(made, reverse=True):
            Path(self._root, folder).chmod(mode)

    def _make(self, folder: str, made: set[str]) -> None:
        if folder not in made:
            self._make(folder.rpartition("/")[0], made)
            Path(self._root, folder).mkdir(0o700)
            made.add(folder)

    def _sorted(self, manifest: Manifest) -> tuple[list[FileEntry], list[FileEntry]]:
        """Files of at most one chunk, and the others, less those that are linked."""
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
        """Neighbouring chunks of a file, got together and written with as few calls as their order allows."""
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
    """(offset, chunk) of a file, in pieces of work of a few megabytes."""
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
    """A file that several threads write; the last one closes it."""

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
    """Rename files one by one into a folder that others may write to: never through a link."""
    root = os.open(dest, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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


def _one_less(running: set[Future[Any]]) -> set[Future[Any]]:
    """Those that go on when one has ended, whose error is raised."""
    done, running = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        future.result()
    return running
