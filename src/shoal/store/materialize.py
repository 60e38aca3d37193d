"""From a manifest to a tree: parallel, verified, and in place in one step or not at all. Never writes outside `dest`."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.errors import Corrupt, InvalidSpec, NameTaken
from shoal.store import hashing
from shoal.store.files import disk_errors
from shoal.store.manifest import check_manifest
from shoal.store.pack import THREADS, Progress

GetChunk = Callable[[str], bytes]
Donor = Callable[[FileEntry], Path | None]

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def materialize(
    manifest: Manifest,
    get_chunk: GetChunk,
    dest: Path,
    *,
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
    `verify=False` when `get_chunk` has compared the hash itself. `read_only` leaves files 0444/0555 and folders 0555. `stamp_s`
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
            with _Writer(aside, get_chunk, style, threads, progress or (lambda _: None)) as writer:
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

    def __init__(self, root: Path, get_chunk: GetChunk, style: _Style, threads: int, progress: Progress):
        self._root = root
        self._get = get_chunk
        self._style = style
        self._progress = progress
        self._threads = threads
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
        running: set[Future[None]] = set()
        for work in self._jobs(manifest):
            if len(running) >= 4 * self._threads:
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                _raise_first(finished)
            running.add(self._pool.submit(work))
        _raise_first(wait(running).done)
        mode = 0o555 if self._style.read_only else 0o755
        for folder in sorted(made, reverse=True):
            (self._root / folder).chmod(mode)

    def _make(self, folder: str, made: set[str]) -> None:
        if folder not in made:
            self._make(folder.rpartition("/")[0], made)
            (self._root / folder).mkdir(0o700)
            made.add(folder)

    def _jobs(self, manifest: Manifest) -> Iterator[Callable[[], None]]:
        small: list[FileEntry] = []
        for file in manifest.files:
            if self._linked(file):
                continue
            if len(file.chunks) > 1:
                yield from self._large(file)
                continue
            small.append(file)
            if len(small) == 32:
                yield partial(self._small, small)
                small = []
        yield partial(self._small, small)

    def _small(self, files: list[FileEntry]) -> None:
        for file in files:
            fd = self._create(file)
            try:
                for chunk in file.chunks:
                    self._write(fd, chunk, 0)
            finally:
                self._close(fd)

    def _linked(self, file: FileEntry) -> bool:
        donor = self._style.donor(file) if file.size else None
        if donor is None:
            return False
        try:
            os.link(donor, self._root / file.path, follow_symlinks=False)
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
        target = _Target(self._create(file), len(file.chunks), self._close)
        self._open.add(target)
        offset = 0
        for chunk in file.chunks:
            yield partial(self._part, target, chunk, offset)
            offset += chunk.size

    def _part(self, target: _Target, chunk: Chunk, offset: int) -> None:
        self._write(target.fd, chunk, offset)
        if target.one_done():
            self._open.discard(target)

    def _create(self, file: FileEntry) -> int:
        mode = (0o555 if file.executable else 0o444) if self._style.read_only else (0o755 if file.executable else 0o644)
        return os.open(self._root / file.path, _NEW_FILE, mode)

    def _write(self, fd: int, chunk: Chunk, offset: int) -> None:
        data = self._get(chunk.hash)
        if len(data) != chunk.size:
            raise Corrupt(f"Chunk {chunk.hash[:12]}… has {len(data)} bytes; the manifest says {chunk.size}.")
        if self._style.verify:
            hashing.verify(chunk.hash, data)
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, offset)
            view, offset = view[written:], offset + written
        self._progress(chunk.size)


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


def _raise_first(done: set[Future[None]]) -> None:
    for future in done:
        future.result()
