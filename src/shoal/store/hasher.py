"""Cutting and hashing of files on all cores. Each file is read once and refused if it changes while it is read.

Why it is safe: `_lock` protects the queues of files, `_open`, and the counters of a `_Reading`. A reading's generator is used
by one thread at a time: the next turn for a file is queued only after the current thread has taken its group. Each group
has a `part` list of its own, appended under the lock in file order and filled by the thread that hashes the group; the thread
that brings `left` to zero joins the parts. Buffers are released when the last view of them is gone, so a sink may keep
chunks. On an error the work queue stops all threads first, and `run` then closes the files that are still open.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from shoal.core import system
from shoal.core.errors import InvalidSpec, Refused
from shoal.store.chunking import WHOLE_FILE, Windows, read_chunks
from shoal.store.file_identity import FileIdentity
from shoal.store.files import read_into
from shoal.store.hashing import chunk_hash
from shoal.store.io.work_queue import Waited, WorkQueue
from shoal.store.known import Chunks, KnownFiles

Progress = Callable[[int], None]
"""Function called with the number of bytes just finished, from any thread."""

Sink = Callable[[Sequence[tuple[str, memoryview]]], None]
"""Function called with neighbouring chunks as (hash, bytes), from any thread. It may keep the bytes."""

THREADS = max(2, min(8, os.cpu_count() or 2))
"""Threads for hashing and writing."""
_RESERVE = 4
"""Extra threads, started when some wait for the disk. More threads without waiting would only compete for the GIL."""
_PARALLEL = 8
"""Large files read at the same time: some are limited by the disk, others (text, which is compressed) by the CPU."""
_GROUP_BYTES = 8 << 20
"""Bytes of a large file that are hashed and passed on together: few turns, and still in the CPU's cache."""
_SMALL_BYTES, _SMALL_FILES = 2 << 20, 256
"""Maximum bytes and files of a group of small files."""
_TRIES = 3
"""Reads of a file that changes before it is refused."""
_TICK_NS = 20_000_000
"""Coarsest resolution of a file's mtime. Two writes within it may have the same mtime."""


class Entry(NamedTuple):
    """A file to pack."""

    path: str
    """Path in the manifest."""
    disk: str | Path
    """Location on disk. Strings are preferred: a million Path objects take longer to make than the files to stat."""
    executable: bool = False
    stamp: FileIdentity | None = None
    """Identity from a listing just now; saves another stat."""


Hashed = tuple[Entry, Chunks]


class Hasher:
    """Cuts and hashes files on all cores.

    A large file passes from thread to thread: a thread reads and cuts a group of chunks, queues the file again, and only then
    hashes the group. A single huge file thus keeps every core busy. Small files are read by one thread until it waits for
    the disk, because reading them is mostly Python code, which holds the GIL.
    """

    def __init__(self, progress: Progress | None, sink: Sink | None, known: KnownFiles | None):
        self._sink, self._known = sink, known
        self._progress = progress or (lambda _: None)
        self._windows = Windows()
        self._lock = threading.Lock()
        self._made: list[Hashed] = []
        self._small: deque[list[tuple[Entry, FileIdentity | None]]] = deque()
        self._large: deque[Entry] = deque()
        self._open: set[_Reading] = set()

    def run(self, entries: Sequence[tuple[Entry, FileIdentity | None]], *, abort: Callable[[], None]) -> list[Hashed]:
        """Return the chunks of each entry, in any order. A file may differ from its stamp, which is only a hint.

        `abort` is called at the first error (see WorkQueue).
        """
        large = [(entry, stamp) for entry, stamp in entries if stamp and stamp.size > WHOLE_FILE]
        large.sort(key=lambda pair: -pair[1].size)
        self._small.extend(_small_groups(pair for pair in entries if not pair[1] or pair[1].size <= WHOLE_FILE))
        self._num_small = len(self._small)
        self._large.extend(entry for entry, _ in large)
        self._work_queue = WorkQueue([self._next_small, *[self._next_large] * _PARALLEL], failed=abort)
        try:
            self._work_queue.run("shoal-pack", THREADS, reserve=_RESERVE)
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
        self._work_queue.put(self._next_small, done)
        if waited:
            self._work_queue.put(self._next_small, done)
            self._work_queue.help()

    def _read_small(self, group: Sequence[tuple[Entry, FileIdentity | None]]) -> None:
        """Read a group of small files into one buffer and pass their chunks to the sink together."""
        found: list[tuple[str, memoryview]] = []
        room, total = self._windows.room(), 0
        for entry, stamp in group:
            data, now = read_small(entry.disk, room, stamp)
            if data is None:  # it has grown since it was listed
                self._work_queue.put(partial(self._read_large, entry))
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
        self._read_group(reading)

    def _read_group(self, reading: _Reading) -> None:
        waited = Waited()
        group = next(reading.groups, None)
        if waited:
            self._work_queue.help()
        if group is None:
            reading.close()
            self._work_queue.put(self._next_large)
            self._finish_group(reading)
            return
        part: Chunks = []
        size = sum(map(len, group))
        with self._lock:
            reading.parts.append(part)
            reading.read += size
            reading.left += 1
        self._work_queue.put(partial(self._read_group, reading), reading.done)
        found = [(chunk_hash(data), data) for data in group]
        if self._sink:
            self._sink(found)
        part += [(name, len(data)) for name, data in found]
        self._progress(size)
        self._finish_group(reading)

    def _finish_group(self, reading: _Reading) -> None:
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
            self._work_queue.put(partial(self._read_large, reading.entry, reading.tries))
        else:
            raise changed(reading.entry.disk)

    def _done(self, entry: Entry, stamp: FileIdentity, chunks: Chunks) -> None:
        if self._known:
            self._known.learn(entry.disk, stamp, chunks)
        self._made.append((entry, chunks))


class _Reading:
    """A large file that is being read."""

    def __init__(self, entry: Entry, windows: Windows, tries: int):
        self.entry, self.tries = entry, tries
        self._fd = open_file(entry.disk)
        self.before = self.after = _stable_stamp(FileIdentity.of(os.fstat(self._fd)), self._fd)
        self.groups = _grouped(read_chunks(self._fd, self.before.size, entry.path, windows))
        self.parts: list[Chunks] = []
        self.left = 1
        """Groups that are not hashed yet, plus one until the end of the file is reached."""
        self.read = 0

    @property
    def done(self) -> float:
        """Share of the file that was read."""
        return self.read / self.before.size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.after = FileIdentity.of(os.fstat(fd))
            os.close(fd)


def read_small(
    path: str | Path, room: memoryview, stamp: FileIdentity | None
) -> tuple[memoryview | None, FileIdentity]:
    """Read a small file into the start of `room`; return its bytes and stamp, or None and its stamp if it is not small.

    A file that changes is read again; Refused is raised if it keeps changing. A `stamp` from a listing saves one stat.
    """
    for _ in range(_TRIES):
        fd = open_file(path)
        try:
            before = _stable_stamp(stamp or FileIdentity.of(os.fstat(fd)), fd)
            if before.size > WHOLE_FILE:
                return None, before
            data = room[: before.size]
            have = read_into(fd, data, 0)
            after = FileIdentity.of(os.fstat(fd))
        finally:
            os.close(fd)
        if after.is_as_written(before) and have == after.size:
            return data, after
        stamp = None
    raise changed(path)


_within: tuple[str, ...] = ()
"""Folders that `open_file` reads from; empty: any."""


def read_only_within(*folders: Path) -> None:
    """Restrict this process: from now on `open_file` opens regular files really below these folders only.

    An agent may be able to read files that its job must not. A job can replace a folder by a link between the moment the agent
    lists it and the moment it opens a file there.
    """
    global _within
    _within = tuple(f"{os.path.realpath(folder)}/" for folder in folders)


def open_file(path: str | Path) -> int:
    try:
        if not _within:
            return os.open(path, os.O_RDONLY | system.CLOEXEC)
        fd = os.open(path, os.O_RDONLY | system.CLOEXEC | system.NOFOLLOW | os.O_NONBLOCK)
        # The kernel knows where the open file really is, whatever the path leads to by now.
        if os.readlink(f"/proc/self/fd/{fd}").startswith(_within) and stat.S_ISREG(os.fstat(fd).st_mode):  # noqa: PTH115
            return fd
        os.close(fd)
        raise changed(path)
    except FileNotFoundError as error:
        raise changed(path) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise changed(path) from error
        if not isinstance(error, PermissionError):
            raise
        raise InvalidSpec(f"{path} cannot be read: permission denied.") from error


def changed(path: str | Path) -> Refused:
    """Return the error for a file that changed while it was read."""
    return Refused(f"{path} changed while it was being read.", hint="Try again when nothing writes to it.")


def _stable_stamp(stamp: FileIdentity, fd: int) -> FileIdentity:
    """Return a stamp that any later write changes; waits until the file is older than the resolution of its mtime."""
    age = time.time_ns() - stamp.mtime_ns
    if not 0 <= age < _TICK_NS:
        return stamp
    time.sleep((_TICK_NS - age) / 1e9)
    return FileIdentity.of(os.fstat(fd))


def _small_groups(
    files: Iterable[tuple[Entry, FileIdentity | None]],
) -> Iterator[list[tuple[Entry, FileIdentity | None]]]:
    group: list[tuple[Entry, FileIdentity | None]] = []
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
