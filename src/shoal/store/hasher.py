"""Files cut and hashed on all cores, each read once, and taken only as it stood still."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from shoal.core.errors import InvalidSpec, Refused
from shoal.store.chunking import WHOLE_FILE, Windows, read_chunks
from shoal.store.files import read_into
from shoal.store.hashing import chunk_hash
from shoal.store.known import Chunks, KnownFiles
from shoal.store.relay import Relay, Waited
from shoal.store.stamp import Stamp

Progress = Callable[[int], None]
"""Called with the bytes newly done, from any thread."""

Sink = Callable[[Sequence[tuple[str, memoryview]]], None]
"""Called with chunks that belong together, each its hash and its bytes, which may be kept."""

THREADS = max(2, min(8, os.cpu_count() or 2))
_RESERVE = 4
"""Threads beside these, where some are seen to wait for a disk: else each would only make others wait for Python."""
_LANES = 8
"""Large files under way at a time: some want a disk more, others (text, which is compressed) the processor."""
_GROUP_BYTES = 8 << 20
"""Chunks of a large file that are hashed and handed on together: few turns, and still in the processor's cache."""
_SMALL_BYTES, _SMALL_FILES = 2 << 20, 256
"""Small files that are read one after another, at most."""
_TRIES = 3
_TICK_NS = 20_000_000
"""Coarsest step of a file's mtime: two writes within one may look like none."""


class Entry(NamedTuple):
    path: str
    """In the manifest."""
    disk: str | Path
    """Where it lies. Of a million files no Path objects are made, which take longer than looking at the files."""
    executable: bool = False
    stamp: Stamp | None = None
    """As it was seen just now, by whoever has looked: saves looking again."""


Hashed = tuple[Entry, Chunks]


class Hasher:
    """Cuts and hashes on all cores.

    A large file goes from thread to thread: whoever has it reads and cuts a group of chunks, puts the file back, and only
    then hashes that group, so that a single huge one keeps every core busy. Small files are one thread's until it is seen to
    wait: reading them is mostly Python, at which threads only take turns.
    """

    def __init__(self, progress: Progress | None, sink: Sink | None, known: KnownFiles | None):
        self._sink, self._known = sink, known
        self._progress = progress or (lambda _: None)
        self._windows = Windows()
        self._lock = threading.Lock()
        self._made: list[Hashed] = []
        self._small: deque[list[tuple[Entry, Stamp | None]]] = deque()
        self._large: deque[Entry] = deque()
        self._open: set[_Reading] = set()

    def run(self, entries: Sequence[tuple[Entry, Stamp | None]], *, abort: Callable[[], None]) -> list[Hashed]:
        """The chunks of each entry, which need not be as its stamp says. `abort` is called at the first error (see Relay)."""
        large = [(entry, stamp) for entry, stamp in entries if stamp and stamp.size > WHOLE_FILE]
        large.sort(key=lambda pair: -pair[1].size)
        self._small.extend(_small_groups(pair for pair in entries if not pair[1] or pair[1].size <= WHOLE_FILE))
        self._num_small = len(self._small)
        self._large.extend(entry for entry, _ in large)
        self._relay = Relay([self._next_small, *[self._next_large] * _LANES], failed=abort)
        try:
            self._relay.run("shoal-pack", THREADS, reserve=_RESERVE)
        finally:
            for reading in self._open:
                reading.close()
        return self._made

    def _next_small(self) -> None:
        with self._lock:
            group = self._small.popleft() if self._small else None
        if group is None:
            return
        waited = Waited()
        self._read_small(group)
        done = 1 - len(self._small) / self._num_small
        self._relay.put(self._next_small, done)
        if waited:
            self._relay.put(self._next_small, done)
            self._relay.help()

    def _read_small(self, group: Sequence[tuple[Entry, Stamp | None]]) -> None:
        """Their chunks lie one behind another in memory, and go to the sink together."""
        found: list[tuple[str, memoryview]] = []
        room, total = self._windows.room(), 0
        for entry, stamp in group:
            data, now = read_small(entry.disk, room, stamp)
            if data is None:  # it has grown large since it was looked at
                self._relay.put(partial(self._read_large, entry))
                continue
            room = room[len(data) :] if len(room) - len(data) >= WHOLE_FILE else self._windows.room()
            chunks = [(chunk_hash(data), len(data))] if data else []
            found += [(name, data) for name, _ in chunks]
            self._done(entry, now, chunks)
            total += len(data)
        if self._sink and found:
            self._sink(found)
        self._progress(total)

    def _next_large(self) -> None:
        with self._lock:
            entry = self._large.popleft() if self._large else None
        if entry:
            self._read_large(entry)

    def _read_large(self, entry: Entry, tries: int = _TRIES) -> None:
        reading = _Reading(entry, self._windows, tries - 1)
        with self._lock:
            self._open.add(reading)
        self._go_on(reading)

    def _go_on(self, reading: _Reading) -> None:
        waited = Waited()
        group = next(reading.groups, None)
        if waited:
            self._relay.help()
        if group is None:
            reading.close()
            self._relay.put(self._next_large)
            self._arrived(reading)
            return
        part: Chunks = []
        size = sum(map(len, group))
        with self._lock:
            reading.parts.append(part)
            reading.read += size
            reading.left += 1
        self._relay.put(partial(self._go_on, reading), reading.done)
        found = [(chunk_hash(data), data) for data in group]
        if self._sink:
            self._sink(found)
        part += [(name, len(data)) for name, data in found]
        self._progress(size)
        self._arrived(reading)

    def _arrived(self, reading: _Reading) -> None:
        with self._lock:
            reading.left -= 1
            if reading.left:
                return
            self._open.discard(reading)
        chunks = [chunk for part in reading.parts for chunk in part]
        size = sum(length for _, length in chunks)
        if reading.after.is_as_written(reading.before) and size == reading.after.size:
            self._done(reading.entry, reading.after, chunks)
        elif reading.tries:
            self._progress(-size)
            self._relay.put(partial(self._read_large, reading.entry, reading.tries))
        else:
            raise changed(reading.entry.disk)

    def _done(self, entry: Entry, stamp: Stamp, chunks: Chunks) -> None:
        if self._known:
            self._known.learn(entry.disk, stamp, chunks)
        self._made.append((entry, chunks))


class _Reading:
    """A large file on its way through the threads."""

    def __init__(self, entry: Entry, windows: Windows, tries: int):
        self.entry, self.tries = entry, tries
        self._fd = open_file(entry.disk)
        self.before = self.after = _settled(Stamp.of(os.fstat(self._fd)), self._fd)
        self.groups = _grouped(read_chunks(self._fd, self.before.size, entry.path, windows))
        self.parts: list[Chunks] = []
        self.left = 1
        """Groups not hashed yet, and one while there may be more."""
        self.read = 0

    @property
    def done(self) -> float:
        """The share that was read."""
        return self.read / self.before.size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.after = Stamp.of(os.fstat(fd))
            os.close(fd)


def read_small(path: str | Path, room: memoryview, stamp: Stamp | None) -> tuple[memoryview | None, Stamp]:
    """A file as it stood still, at the start of `room`, and its stamp; None instead of it where it is not small.

    `stamp` as it was seen before saves looking at it first.
    """
    for _ in range(_TRIES):
        fd = open_file(path)
        try:
            before = _settled(stamp or Stamp.of(os.fstat(fd)), fd)
            if before.size > WHOLE_FILE:
                return None, before
            data = room[: before.size]
            have = read_into(fd, data, 0)
            after = Stamp.of(os.fstat(fd))
        finally:
            os.close(fd)
        if after.is_as_written(before) and have == after.size:
            return data, after
        stamp = None
    raise changed(path)


def open_file(path: str | Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise changed(path) from error
    except PermissionError as error:
        raise InvalidSpec(f"{path} may not be read.") from error


def changed(path: str | Path) -> Refused:
    return Refused(f"{path} changed while it was being read.", hint="Try again when nothing writes to it.")


def _settled(stamp: Stamp, fd: int) -> Stamp:
    """A stamp that any later writing changes."""
    age = time.time_ns() - stamp.mtime_ns
    if not 0 <= age < _TICK_NS:
        return stamp
    time.sleep((_TICK_NS - age) / 1e9)
    return Stamp.of(os.fstat(fd))


def _small_groups(files: Iterable[tuple[Entry, Stamp | None]]) -> Iterator[list[tuple[Entry, Stamp | None]]]:
    group: list[tuple[Entry, Stamp | None]] = []
    size = 0
    for entry, stamp in files:
        group.append((entry, stamp))
        size += stamp.size if stamp else 0
        if size >= _SMALL_BYTES or len(group) >= _SMALL_FILES:
            yield group
            group, size = [], 0
    if group:
        yield group


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
