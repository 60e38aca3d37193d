"""Records on disk until the server has them. One Spool per stream; appended by any thread, read by the one that ships.

Files of JSON lines, `<index>.jsonl`. A record's sequence number is its file's base plus its line, and a file gets its base
(`<index>-<base>.jsonl`, by rename) only when its turn to be shipped comes. So a full spool can drop whole files that were
never begun without leaving a hole in the numbers, and a kill -9 loses nothing but a torn last line.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)

FILE_BYTES = 8 << 20
CAP_BYTES = 1 << 30
HELD_BYTES = 8 << 20
"""Kept in memory while the disk takes nothing."""
SEGMENT_BYTES = 768 << 10
"""Below the 1 MiB of the wire, where each record also carries its number."""


class Batch(NamedTuple):
    """Consecutive records, ready for the wire."""

    first: int
    records: int
    body: bytes


class Spool:
    def __init__(self, folder: Path, *, file_bytes: int = FILE_BYTES, cap_bytes: int = CAP_BYTES):
        self._folder, self._file_bytes, self._cap_bytes = folder, file_bytes, cap_bytes
        self._lock = threading.Lock()
        self._fd = -1
        self._said = ""
        self._held: list[bytes] = []
        """Records that could not be written, since the disk is full or sick; they come after those in the files."""
        self._held_bytes = 0
        self._in_flight = 0
        """How many of them the last batch was made of: these must not be written meanwhile, or they would count twice."""
        self._lost = 0
        """Records that even memory had no room for, not yet told of."""
        self.on_append: Callable[[], None] = lambda: None
        folder.mkdir(parents=True, exist_ok=True)
        self._files = [_File.find(path) for path in sorted(folder.glob("*.jsonl"))]
        if not self._files:
            self._files = [_File(folder / "00000000-0.jsonl", 0, 0, 0)]
        self._cut_torn_line()
        if self._files[0].base is None:
            self._files[0].give_base(0)
        self._seq = self._files[0].base or 0
        self._offset = 0
        self._read_to = (self._seq, 0)
        """Sequence number and offset at which the last batch read ends: where the usual ack lands."""
        self._sync_due = False

    @property
    def empty(self) -> bool:
        """Everything appended so far is durable at the server."""
        with self._lock:
            return len(self._files) == 1 and self._offset >= self._files[0].size and not self._held

    def append(self, lines: list[bytes]) -> None:
        """Add records, each the JSON of an object without `s` and without a newline."""
        if not lines:
            return
        with self._lock:
            self._held += lines
            self._held_bytes += sum(map(len, lines))
            self._write_held()
            self._keep_to_cap()
        self.on_append()

    def read(self, max_bytes: int = SEGMENT_BYTES) -> Batch | None:
        """The oldest records not yet acknowledged; None when there are none."""
        with self._lock:
            self._in_flight = 0
            self._write_held()
            file = self._reading()
            if self._offset >= file.size:
                return self._read_held(max_bytes)
            with file.path.open("rb") as f:
                f.seek(self._offset)
                data = f.read(min(max_bytes, file.size - self._offset))
                if not data.endswith(b"\n"):
                    whole = data.rfind(b"\n") + 1
                    data = data[:whole] if whole else data + f.readline()
            first = self._seq
            lines = data[:-1].split(b"\n")
            self._read_to = (first + len(lines), self._offset + len(data))
        return _batch(first, lines)

    def ack(self, next_seq: int) -> None:
        """All records below `next_seq` are durable at the server; go on from there, forwards or back."""
        with self._lock:
            if self._in_flight and next_seq > self._files[0].end:
                self._ack_held(next_seq)
                return
            if next_seq < (self._files[0].base or 0):
                # The server was set back to a time before: what it lost is gone here too, so what is left moves up.
                logger.warning("server expects %d, the oldest record here is %d", next_seq, self._files[0].base)
                self._renumber(next_seq)
                return
            if next_seq == self._read_to[0]:
                self._seq, self._offset = self._read_to
            else:
                self._seek(next_seq)
            self._reading()

    def sync(self) -> None:
        """fsync what the server does not have yet: from then on it survives the machine."""
        with self._lock:
            self._write_held()
            fd = os.dup(self._fd) if self._sync_due and self._fd >= 0 and self._offset < self._files[-1].size else -1
            self._sync_due = False
        if fd >= 0:
            with suppress(OSError):
                os.fsync(fd)
            os.close(fd)

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _write_held(self) -> None:
        """Write what is held in memory, unless a part of it is on its way to the server; what is too much is dropped."""
        if not self._held or self._in_flight:
            return
        lines = [notice(self._lost, "the disk was full"), *self._held] if self._lost else self._held
        data = b"\n".join(lines) + b"\n"
        if self._write(data):
            self._files[-1].count += len(lines)
            self._files[-1].size += len(data)
            self._held, self._held_bytes, self._lost = [], 0, 0
            return
        drop = 0
        while self._held_bytes > HELD_BYTES and drop < len(self._held) - 1:
            self._held_bytes -= len(self._held[drop])
            drop += 1
        del self._held[:drop]
        self._lost += drop

    def _read_held(self, max_bytes: int) -> Batch | None:
        """A batch of what is only in memory, numbered after all that is in the files."""
        if not self._held:
            return None
        if self._lost:
            self._held.insert(0, notice(self._lost, "the disk was full"))
            self._lost = 0
        first, size = self._seq, 0
        while self._in_flight < len(self._held) and (size < max_bytes or not self._in_flight):
            size += len(self._held[self._in_flight])
            self._in_flight += 1
        return _batch(first, self._held[: self._in_flight])

    def _ack_held(self, next_seq: int) -> None:
        """Its records have no line in any file: the numbers of the file's own lines move up, so that the next one fits."""
        file = self._files[0]
        done = min(next_seq - file.end, self._in_flight)
        self._held_bytes -= sum(map(len, self._held[:done]))
        del self._held[:done]
        self._in_flight = 0
        file.give_base(next_seq - file.count)
        self._seq, self._offset = next_seq, file.size
        self._read_to = (self._seq, self._offset)

    def _write(self, data: bytes) -> bool:
        try:
            if self._fd < 0 or self._files[-1].size >= self._file_bytes:
                self._open_last()
            done = 0
            while done < len(data):
                done += os.write(self._fd, data[done:] if done else data)
        except OSError as error:
            if str(error) != self._said:
                logger.warning("cannot write to the spool: %s", error)
            self._said = str(error)
            if self._fd >= 0:
                with suppress(OSError):
                    os.ftruncate(self._fd, self._files[-1].size)
            return False
        self._sync_due, self._said = True, ""
        return True

    def _open_last(self) -> None:
        """Open the file to append to, a new one if the last is full."""
        last = self._files[-1]
        if last.size >= self._file_bytes:
            last = _File(self._folder / f"{last.index + 1:08d}.jsonl", 0, 0, None)
        fd = os.open(last.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        if last is not self._files[-1]:
            self._files.append(last)

    def _reading(self) -> _File:
        """The file being shipped: done ones are deleted, after the next has got its base."""
        while len(self._files) > 1 and self._offset >= self._files[0].size:
            done, following = self._files[0], self._files[1]
            following.give_base(done.end)
            done.path.unlink(missing_ok=True)
            self._files.pop(0)
            self._seq, self._offset = following.base or 0, 0
            self._read_to = (self._seq, 0)
        return self._files[0]

    def _seek(self, next_seq: int) -> None:
        while next_seq > self._files[0].end and len(self._files) > 1:
            self._offset = self._files[0].size
            self._reading()
        file = self._files[0]
        if next_seq > file.end:
            # The server has more than is left here (the machine lost power): new records come after those.
            logger.warning("server expects %d, the newest record here is %d", next_seq, file.end)
            file.give_base(next_seq - file.count)
        self._seq, self._offset = next_seq, file.offset_of(next_seq)
        self._read_to = (self._seq, self._offset)

    def _renumber(self, next_seq: int) -> None:
        self._files[0].give_base(next_seq)
        self._seq, self._offset = next_seq, 0
        self._read_to = (next_seq, 0)

    def _keep_to_cap(self) -> None:
        """Over the cap, the oldest file that was never begun shrinks to one record that says so."""
        if sum(f.size for f in self._files) <= self._cap_bytes:
            return
        for file in self._files[1:-1]:
            if file.count > 1:
                with suppress(OSError):
                    file.replace(notice(file.count, "the server was out of reach and the spool was full"))
                return

    def _cut_torn_line(self) -> None:
        last = self._files[-1]
        if last.path.exists() and last.path.stat().st_size > last.size:
            os.truncate(last.path, last.size)


class _File:
    """One file of a spool, and what is known of it without reading it again."""

    __slots__ = ("base", "count", "path", "size")

    def __init__(self, path: Path, size: int, count: int, base: int | None):
        self.path, self.size, self.count, self.base = path, size, count, base

    @classmethod
    def find(cls, path: Path) -> _File:
        data = path.read_bytes()
        _, _, base = path.stem.partition("-")
        return cls(path, data.rfind(b"\n") + 1, data.count(b"\n"), int(base) if base else None)

    @property
    def index(self) -> int:
        return int(self.path.stem.partition("-")[0])

    @property
    def end(self) -> int:
        return (self.base or 0) + self.count

    def give_base(self, base: int) -> None:
        if base == self.base:
            return
        path = self.path.with_name(f"{self.index:08d}-{base}.jsonl")
        if self.path.exists():
            self.path.rename(path)
        self.path, self.base = path, base

    def offset_of(self, seq: int) -> int:
        skip = seq - (self.base or 0)
        if skip >= self.count:
            return self.size
        with self.path.open("rb") as f:
            for _ in range(skip):
                f.readline()
            return f.tell()

    def replace(self, line: bytes) -> None:
        aside = self.path.with_suffix(".tmp")
        aside.write_bytes(line + b"\n")
        aside.rename(self.path)
        self.size, self.count = len(line) + 1, 1


def _batch(first: int, lines: list[bytes]) -> Batch:
    body = b"\n".join(b'{"s":%d,%s' % (first + i, line[1:]) for i, line in enumerate(lines))
    return Batch(first, len(lines), body)


def notice(count: int, why: str) -> bytes:
    """The record that takes the place of others."""
    text = f"[shoal] {count} records were dropped here: {why}"
    return json.dumps({"t": round(time.time(), 3), "e": "sys", "m": text, "dropped": count}).encode()
