"""From files to a manifest: cut, hash on all cores, remember where each chunk lies. Memory stays flat for any size.

Chunks are read again when they are sent; a file that changes meanwhile is noticed then, as it is while being hashed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.artifacts import Chunk, FileEntry, Manifest, check_path
from shoal.core.errors import InvalidSpec, Refused
from shoal.store.chunking import WHOLE_FILE, Windows, read_chunks
from shoal.store.files import read_exact
from shoal.store.hashing import chunk_hash
from shoal.store.ignore import Scan, scan
from shoal.store.known import KnownFiles

Progress = Callable[[int], None]
"""Called with the bytes newly done, from any thread."""

Sink = Callable[[str, memoryview], None]
"""Called with a hash and its bytes, which may be kept."""

THREADS = max(2, min(8, os.cpu_count() or 2))
_IN_FLIGHT = 64
"""Chunks read and not yet hashed."""
_SMALL_GROUP = 48
_TRIES = 3
_TICK_NS = 20_000_000
"""Coarsest step of a file's mtime: two writes within one may look like none."""


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    """In the manifest."""
    disk: Path
    executable: bool = False


@dataclass(slots=True)
class PackedTree:
    """A manifest and the way back to the bytes of its chunks."""

    manifest: Manifest
    skipped: list[str] = field(default_factory=list)
    """One line per thing that was left out because it cannot travel (sockets, pipes, links to nowhere)."""
    where: dict[str, tuple[Path, int, int]] = field(default_factory=dict)
    """Hash → file, offset, size."""
    unread: set[str] = field(default_factory=set)
    """Paths whose chunks were known from before."""

    def read(self, name: str) -> bytes:
        path, offset, size = self.where[name]
        with _opened(path) as fd:
            data = read_exact(fd, size, offset)
        if chunk_hash(data) != name:
            raise _changed(path)
        return data


def pack_tree(
    root: Path,
    *,
    ignore: bool = True,
    max_bytes: int | None = None,
    max_files: int | None = None,
    scanned: Scan | None = None,
    known: KnownFiles | None = None,
    progress: Progress | None = None,
) -> PackedTree:
    """Pack a folder. `ignore=False` takes every file (datasets); a `scanned` of before saves listing it again.

    `known` saves reading files that are as they were at an earlier packing.
    """
    found = scanned or scan(Path(root), ignore=ignore, max_bytes=max_bytes, max_files=max_files)
    entries = [Entry(f.path, found.root / f.path, f.executable) for f in found.files]
    packed = pack_entries(entries, known=known, progress=progress)
    packed.skipped += found.skipped
    return packed


def pack_files(files: Mapping[str, Path] | Iterable[Path], *, progress: Progress | None = None) -> PackedTree:
    """Pack single files, each under its own name or under the path it is mapped from."""
    pairs = list(files.items()) if isinstance(files, Mapping) else [(Path(f).name, Path(f)) for f in files]
    seen: dict[str, Path] = {}
    for name, path in pairs:
        if name in seen:
            raise InvalidSpec(f"{seen[name]} and {path} would both become {name}.")
        if not path.is_file():
            raise InvalidSpec(f"{path} is not a file." if path.exists() else f"There is no file {path}.")
        seen[name] = path
    entries = [Entry(name, path, bool(path.stat().st_mode & 0o111)) for name, path in seen.items()]
    return pack_entries(entries, progress=progress)


def pack_entries(
    entries: list[Entry],
    *,
    progress: Progress | None = None,
    sink: Sink | None = None,
    abort: Callable[[], None] | None = None,
    known: KnownFiles | None = None,
) -> PackedTree:
    """The general form. `sink` is given every chunk's bytes as soon as they are hashed, from several threads.

    Files that are `known` are not read, and the sink does not get them: their paths are in `PackedTree.unread`. `abort` is
    called when all is over before its end, so that a sink that makes its callers wait lets them go.
    """
    by_path = {check_path(e.path): e for e in entries}
    if len(by_path) < len(entries):
        raise InvalidSpec("Two files were given for one path.")
    packed = PackedTree(Manifest(files=[]))
    files: list[FileEntry] = []
    if known:
        files = [_made(e, chunks) for e in entries if (chunks := known.look(e.disk))]
        packed.unread = {f.path for f in files}
        if progress:
            progress(sum(f.size for f in files))
    with _Hasher(progress, sink, known) as hasher:
        try:
            files += hasher.run([e for e in entries if e.path not in packed.unread])
        except BaseException:
            if abort:
                abort()
            raise
    if known:
        known.save()
    files.sort(key=lambda f: f.path)
    packed.manifest.files = files
    for made in files:
        offset = 0
        for chunk in made.chunks:
            packed.where.setdefault(chunk.hash, (by_path[made.path].disk, offset, chunk.size))
            offset += chunk.size
    return packed


def read_stable(path: Path, take: Callable[[int, int], None], *, again: Callable[[], None]) -> os.stat_result:
    """Call `take(fd, size)` on a file that stays as it is meanwhile; `again()` before each new try. Returns its status."""
    for attempt in range(_TRIES):
        if attempt:
            again()
        with _opened(path) as fd:
            before = os.fstat(fd)
            age = time.time_ns() - before.st_mtime_ns
            if 0 <= age < _TICK_NS:
                time.sleep((_TICK_NS - age) / 1e9)
                before = os.fstat(fd)
            take(fd, before.st_size)
            after = os.fstat(fd)
        if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
            return after
    raise _changed(path)


class _Hasher:
    """One pool walks files, another hashes chunks of large ones, so that a single huge file keeps every core busy."""

    def __init__(self, progress: Progress | None, sink: Sink | None, known: KnownFiles | None):
        self._sink = sink
        self._known = known
        self._progress = progress or (lambda _: None)
        self._walkers = ThreadPoolExecutor(THREADS, thread_name_prefix="shoal-pack")
        self._hashers = ThreadPoolExecutor(THREADS, thread_name_prefix="shoal-hash")
        self._room = threading.Semaphore(_IN_FLIGHT)
        self._windows = Windows()
        self._stopped = threading.Event()

    def __enter__(self) -> _Hasher:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._walkers.shutdown(cancel_futures=True)
        self._hashers.shutdown(cancel_futures=True)

    def run(self, entries: list[Entry]) -> list[FileEntry]:
        running = [self._walkers.submit(self._group, group) for group in _groups(entries)]
        return [made for group in as_completed(running) for made in group.result()]

    def _group(self, entries: list[Entry]) -> list[FileEntry]:
        return [self._file(entry) for entry in entries]

    def _file(self, entry: Entry) -> FileEntry:
        chunks: list[tuple[str | Future[str], int]] = []

        def take(fd: int, size: int) -> None:
            for data in read_chunks(fd, size, entry.path, self._windows):
                if self._stopped.is_set():
                    raise InterruptedError
                chunks.append((self._hash(data, size), len(data)))
            for index, (name, length) in enumerate(chunks):
                chunks[index] = (name if isinstance(name, str) else name.result(), length)

        def again() -> None:
            self._progress(-sum(length for _, length in chunks))
            chunks.clear()

        status = read_stable(entry.disk, take, again=again)
        done = [(str(name), length) for name, length in chunks]
        if sum(length for _, length in done) != status.st_size:
            raise _changed(entry.disk)
        if self._known:
            self._known.learn(entry.disk, status, done)
        return _made(entry, done)

    def _hash(self, data: memoryview, file_size: int) -> str | Future[str]:
        if file_size <= WHOLE_FILE:
            return self._hash_now(data)
        self._room.acquire()
        return self._hashers.submit(self._hash_later, data)

    def _hash_later(self, data: memoryview) -> str:
        try:
            return self._hash_now(data)
        finally:
            self._room.release()

    def _hash_now(self, data: memoryview) -> str:
        name = chunk_hash(data)
        if self._sink:
            self._sink(name, data)
        self._progress(len(data))
        return name


def _made(entry: Entry, chunks: list[tuple[str, int]]) -> FileEntry:
    return FileEntry.model_construct(
        path=entry.path,
        size=sum(size for _, size in chunks),
        executable=entry.executable,
        chunks=[Chunk.model_construct(hash=name, size=size) for name, size in chunks],
    )


def _groups(entries: list[Entry]) -> list[list[Entry]]:
    """Work of similar length: large files alone and first, small ones by the dozen."""
    sizes = {e.path: _size(e.disk) for e in entries}
    large = sorted((e for e in entries if sizes[e.path] > WHOLE_FILE), key=lambda e: -sizes[e.path])
    small = [e for e in entries if sizes[e.path] <= WHOLE_FILE]
    return [[e] for e in large] + [small[at : at + _SMALL_GROUP] for at in range(0, len(small), _SMALL_GROUP)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise _changed(path) from error
    except PermissionError as error:
        raise InvalidSpec(f"{path} may not be read.") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _changed(path: Path) -> Refused:
    return Refused(f"{path} changed while it was being read.", hint="Try again when nothing writes to it.")
