"""From a manifest to a tree: parallel, verified, and in place in one step or not at all. Never writes outside `dest`."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.errors import Corrupt, InvalidSpec, NameTaken
from shoal.store import hashing
from shoal.store.files import disk_errors
from shoal.store.manifest import check_manifest
from shoal.store.pack import THREADS, Progress

GetChunk = Callable[[str], bytes]

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
    threads: int = THREADS,
    progress: Progress | None = None,
) -> None:
    """Write the manifest's files to `dest`.

    `dest` must not exist or be an empty folder; with `merge` it may hold other files, and ones of the same path are replaced.
    `verify=False` when `get_chunk` has compared the hash itself. `read_only` leaves files 0444/0555 and folders 0555.
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
        aside = dest.parent / f".{dest.name[:100]}.{secrets.token_hex(6)}.tmp"
        aside.mkdir(mode=0o700)
        try:
            with _Writer(aside, get_chunk, verify, read_only, threads, progress) as writer:
                writer.run(manifest)
            if merge and dest.exists():
                _merge(manifest, aside, dest)
            else:
                aside.rename(dest)
        except BaseException:
            remove_tree(aside)
            raise
        if merge and aside.exists():
            remove_tree(aside)


def remove_tree(path: Path) -> None:
    """rm -rf that also takes read-only folders."""
    for folder, _, _ in os.walk(path):
        Path(folder).chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


class _Writer:
    """Writes into a private new folder in which every folder is made by itself: no path can lead outside."""

    def __init__(
        self, root: Path, get_chunk: GetChunk, verify: bool, read_only: bool, threads: int, progress: Progress | None
    ):
        self._root = root
        self._get = get_chunk
        self._verify = verify
        self._read_only = read_only
        self._progress = progress or (lambda _: None)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="shoal-write")

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

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
        mode = 0o555 if self._read_only else 0o755
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
            if len(file.chunks) > 1:
                yield from self._large(file)
                continue
            small.append(file)
            if len(small) == 32:
                yield lambda batch=small: self._small(batch)  # type: ignore[misc]
                small = []
        yield lambda: self._small(small)

    def _small(self, files: list[FileEntry]) -> None:
        for file in files:
            fd = self._create(file)
            try:
                for chunk in file.chunks:
                    self._write(fd, chunk, 0)
            finally:
                os.close(fd)

    def _large(self, file: FileEntry) -> Iterator[Callable[[], None]]:
        target = _Target(self._create(file), len(file.chunks))
        offset = 0
        try:
            for chunk in file.chunks:
                yield lambda c=chunk, at=offset: target.use(lambda fd: self._write(fd, c, at))  # type: ignore[misc]
                offset += chunk.size
        except GeneratorExit:
            target.abandon()
            raise

    def _create(self, file: FileEntry) -> int:
        mode = (0o555 if file.executable else 0o444) if self._read_only else (0o755 if file.executable else 0o644)
        return os.open(self._root / file.path, _NEW_FILE, mode)

    def _write(self, fd: int, chunk: Chunk, offset: int) -> None:
        data = self._get(chunk.hash)
        if len(data) != chunk.size:
            raise Corrupt(f"Chunk {chunk.hash[:12]}… has {len(data)} bytes; the manifest says {chunk.size}.")
        if self._verify:
            hashing.verify(chunk.hash, data)
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, offset)
            view, offset = view[written:], offset + written
        self._progress(chunk.size)


class _Target:
    """A file that several threads write; the last one closes it."""

    def __init__(self, fd: int, left: int):
        self._fd = fd
        self._left = left
        self._lock = threading.Lock()

    def use(self, work: Callable[[int], None]) -> None:
        try:
            work(self._fd)
        finally:
            self._drop(1)

    def abandon(self) -> None:
        self._drop(self._left)

    def _drop(self, count: int) -> None:
        with self._lock:
            self._left -= count
            if self._left == 0:
                os.close(self._fd)


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
