"""Files cut and hashed on all cores, each read once, and taken only as it stood still."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from shoal.core.errors import InvalidSpec, Refused
from shoal.store.chunking import WHOLE_FILE, Windows, read_chunks
from shoal.store.crew import Crew
from shoal.store.files import read_exact
from shoal.store.hashing import chunk_hash
from shoal.store.known import Chunks, KnownFiles

Progress = Callable[[int], None]
"""Called with the bytes newly done, from any thread."""

Sink = Callable[[Sequence[tuple[str, memoryview]]], None]
"""Called with chunks that belong together, each its hash and its bytes, which may be kept."""

T = TypeVar("T")

THREADS = max(2, min(8, os.cpu_count() or 2))
_WALKERS, _HASHERS = THREADS + 2, THREADS + 1
"""More than there are processors: some of them wait for a disk."""
_GROUP_BYTES = 8 << 20
"""Chunks of a large file that are handed on together: few hand-overs, and still in the processor's cache."""
_GROUP_FILES = 64
_TRIES = 3
_TICK_NS = 20_000_000
"""Coarsest step of a file's mtime: two writes within one may look like none."""


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    """In the manifest."""
    disk: Path
    executable: bool = False


Hashed = tuple[Entry, Chunks]


class Hasher:
    """Walkers read and cut, hashers hash what was cut from large files, so that a single huge one keeps every core busy.

    Small files are one walker's until it is seen to wait: reading them is mostly Python, at which threads only take turns.
    """

    def __init__(self, progress: Progress | None, sink: Sink | None, known: KnownFiles | None):
        self._sink = sink
        self._known = known
        self._progress = progress or (lambda _: None)
        self._walkers = ThreadPoolExecutor(_WALKERS, thread_name_prefix="shoal-pack")
        self._hashers = ThreadPoolExecutor(_HASHERS, thread_name_prefix="shoal-hash")
        self._room = threading.Semaphore(_HASHERS)
        self._windows = Windows()
        self._stopped = threading.Event()

    def __enter__(self) -> Hasher:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._walkers.shutdown(cancel_futures=True)
        self._hashers.shutdown(cancel_futures=True)

    def run(self, sizes: Sequence[tuple[Entry, int]]) -> list[Hashed]:
        """The chunks of each entry; how large it is need not be exact."""
        large = sorted(((e, size) for e, size in sizes if size > WHOLE_FILE), key=lambda pair: -pair[1])
        small = [e for e, size in sizes if size <= WHOLE_FILE]
        groups = (small[at : at + _GROUP_FILES] for at in range(0, len(small), _GROUP_FILES))
        crew = Crew(self._walkers, (partial(self._group, group) for group in groups))
        crew.start()
        running = {self._walkers.submit(self._groups_of_one, e) for e, _ in large}
        made: list[Hashed] = []
        while running := running | crew.started():
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                made += (hashed for part in future.result() for hashed in part)
        return made

    def _groups_of_one(self, entry: Entry) -> list[list[Hashed]]:
        return [self._large(entry)]

    def _group(self, entries: Sequence[Entry]) -> list[Hashed]:
        """Small files, read one after another; their chunks go to the sink together."""
        made: list[Hashed] = []
        found: list[tuple[str, memoryview]] = []
        for entry in entries:
            if self._stopped.is_set():
                raise InterruptedError
            data, status = read_stable(entry.disk, _read_small)
            if len(data) != status.st_size:  # it has grown large since it was looked at, or shrunk and grown again
                made += self._large(entry)
                continue
            chunks = [(chunk_hash(data), len(data))] if data else []
            found += [(name, memoryview(data)) for name, _ in chunks]
            made.append(self._learnt(entry, status, chunks))
            self._progress(len(data))
        if self._sink and found:
            self._sink(found)
        return made

    def _large(self, entry: Entry) -> list[Hashed]:
        taken: list[Chunks] = []

        def take(fd: int, size: int) -> Chunks:
            if taken:  # the file was not as it should be, and is read again
                self._progress(-sum(length for chunks in taken for _, length in chunks))
                taken.clear()
            groups = [self._shared(group) for group in _grouped(read_chunks(fd, size, entry.path, self._windows))]
            taken.extend(group if isinstance(group, list) else group.result() for group in groups)
            return [chunk for chunks in taken for chunk in chunks]

        chunks, status = read_stable(entry.disk, take)
        if sum(length for _, length in chunks) != status.st_size:
            raise changed(entry.disk)
        return [self._learnt(entry, status, chunks)]

    def _learnt(self, entry: Entry, status: os.stat_result, chunks: Chunks) -> Hashed:
        if self._known:
            self._known.learn(entry.disk, status, chunks)
        return entry, chunks

    def _shared(self, group: list[memoryview]) -> Chunks | Future[Chunks]:
        if self._stopped.is_set():
            raise InterruptedError
        if not self._room.acquire(blocking=False):
            return self._hash(group)  # all hashers have enough to do
        return self._hashers.submit(self._hash_there, group)

    def _hash_there(self, group: list[memoryview]) -> Chunks:
        try:
            return self._hash(group)
        finally:
            self._room.release()

    def _hash(self, group: list[memoryview]) -> Chunks:
        found = [(chunk_hash(data), data) for data in group]
        if self._sink:
            self._sink(found)
        for data in group:
            self._progress(len(data))
        return [(name, len(data)) for name, data in found]


def read_stable(path: Path, take: Callable[[int, int], T]) -> tuple[T, os.stat_result]:
    """What `take(fd, size)` makes of a file that stays as it is meanwhile, and its status; called again if it did not."""
    for _ in range(_TRIES):
        fd = open_file(path)
        try:
            before = os.fstat(fd)
            age = time.time_ns() - before.st_mtime_ns
            if 0 <= age < _TICK_NS:
                time.sleep((_TICK_NS - age) / 1e9)
                before = os.fstat(fd)
            taken = take(fd, before.st_size)
            after = os.fstat(fd)
        finally:
            os.close(fd)
        if before.st_size == after.st_size and before.st_mtime_ns == after.st_mtime_ns:
            return taken, after
    raise changed(path)


def open_file(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise changed(path) from error
    except PermissionError as error:
        raise InvalidSpec(f"{path} may not be read.") from error


def changed(path: Path) -> Refused:
    return Refused(f"{path} changed while it was being read.", hint="Try again when nothing writes to it.")


def _read_small(fd: int, size: int) -> bytes:
    return read_exact(fd, size, 0) if size <= WHOLE_FILE else b""


def _grouped(chunks: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    group: list[memoryview] = []
    size = 0
    for chunk in chunks:
        group.append(chunk)
        size += len(chunk)
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
