"""Outbox of a stream: records on disk until the server has them. Any thread appends; the shipping thread reads.

The records are JSON lines in files `<index>.jsonl`. A record's sequence number is its file's base plus its line number, and a
file gets its base (`<index>-<base>.jsonl`, by rename) only when it is about to be sent. So a full outbox can drop whole files
that were not begun without leaving a gap in the numbers.

Why this is safe: `_lock` guards all state and all file operations except fsync, which works on a duplicate descriptor so that
appends do not wait for the disk. `on_append` is called without the lock. After a kill -9 only an incomplete last line is lost:
the next start cuts it off (`_cut_torn_line`). A file is deleted only after its successor has its base; a crash between the
two, or between the server's answer and `ack`, makes us send records again with the same numbers, and the server answers with
the number it expects. Records that are only in memory (the disk is full) are not written while a batch of them is under way
(`_in_flight`), because they would get a second number.
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
"""Most bytes kept in memory while the disk cannot be written."""
SEGMENT_BYTES = 768 << 10
"""Most bytes in a batch. Below the 1 MiB limit of the server, because each record also carries its number."""


class Batch(NamedTuple):
    """Consecutive records, encoded for sending."""

    first: int
    records: int
    body: bytes


class Outbox:
    """Records of one stream that the server does not have yet, in files of one folder."""

    def __init__(self, folder: Path, *, file_bytes: int = FILE_BYTES, cap_bytes: int = CAP_BYTES):
        self._folder, self._file_bytes, self._cap_bytes = folder, file_bytes, cap_bytes
        self._lock = threading.Lock()
        self._fd = -1
        self._said = ""
        self._is_torn = False
        """True while a part of a record may follow the last one in the file that is written."""
        self._held: list[bytes] = []
        """Records that could not be written because of a full or failing disk; they follow those in the files."""
        self._held_bytes = 0
        self._in_flight = 0
        """Number of held records in the last batch; they must not be written before its answer, or they would count twice."""
        self._lost = 0
        """Number of records dropped because memory was full too, not yet reported."""
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
        """Sequence number and file offset of the end of the last batch, which is normally what the next ack confirms."""
        self._sync_due = False

    @property
    def empty(self) -> bool:
        """True if the server has stored everything appended so far."""
        with self._lock:
            return len(self._files) == 1 and self._offset >= self._files[0].size and not self._held

    def append(self, lines: list[bytes]) -> None:
        """Add records: each is a JSON object without the field `s` and without a newline."""
        if not lines:
            return
        with self._lock:
            self._held += lines
            self._held_bytes += sum(map(len, lines))
            self._write_held()
            self._keep_to_cap()
        self.on_append()

    def read(self, max_bytes: int = SEGMENT_BYTES) -> Batch | None:
        """Return the oldest records that are not acknowledged, or None."""
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
        """Continue at `next_seq`, forwards or backwards: the server has stored all records below it."""
        with self._lock:
            if self._in_flight and next_seq > self._files[0].end:
                self._ack_held(next_seq)
                return
            if next_seq < (self._files[0].base or 0):
                # The server was restored from a backup and expects records that are deleted here: renumber the remaining ones.
                logger.warning("server expects %d, the oldest record here is %d", next_seq, self._files[0].base)
                self._renumber(next_seq)
                return
            if next_seq == self._read_to[0]:
                self._seq, self._offset = self._read_to
            else:
                self._seek(next_seq)
            self._reading()

    def sync(self) -> None:
        """Call fsync if there are records the server does not have; after that they survive a power loss."""
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
        """Write the held records, unless some of them are under way to the server.

        If that fails, drop the oldest over HELD_BYTES.
        """
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
        """Return a batch of records that are only in memory, numbered after all records in the files."""
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
        """Acknowledge held records. They have no line in a file, so the base of the file is raised: the next line must fit."""
        file = self._files[0]
        done = min(next_seq - file.end, self._in_flight)
        file.give_base(next_seq - file.count)  # first: if the disk refuses, everything is as before, and is tried again
        self._held_bytes -= sum(map(len, self._held[:done]))
        del self._held[:done]
        self._in_flight = 0
        self._seq, self._offset = next_seq, file.size
        self._read_to = (self._seq, self._offset)

    def _write(self, data: bytes) -> bool:
        try:
            self._cut()
            if self._fd < 0 or self._files[-1].size >= self._file_bytes:
                self._open_last()
            self._is_torn, done = True, 0
            while done < len(data):
                done += os.write(self._fd, data[done:] if done else data)
        except OSError as error:
            if str(error) != self._said:
                logger.warning("cannot write to the outbox: %s", error)
            self._said = str(error)
            with suppress(OSError):
                self._cut()
            return False
        self._sync_due, self._said, self._is_torn = True, "", False
        return True

    def _cut(self) -> None:
        """Remove what a failed write has left after the last record. Before that, nothing may be written after it."""
        if self._is_torn:
            os.ftruncate(self._fd, self._files[-1].size)
            self._is_torn = False

    def _open_last(self) -> None:
        """Open the file to append to; a new one if the last is full."""
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
        """Return the file being sent. Files that are done are deleted after the next one has its base."""
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
            # The server has more than is left here after a power loss: number new records after those.
            logger.warning("server expects %d, the newest record here is %d", next_seq, file.end)
            file.give_base(next_seq - file.count)
        self._seq, self._offset = next_seq, file.offset_of(next_seq)
        self._read_to = (self._seq, self._offset)

    def _renumber(self, next_seq: int) -> None:
        self._files[0].give_base(next_seq)
        self._seq, self._offset = next_seq, 0
        self._read_to = (next_seq, 0)

    def _keep_to_cap(self) -> None:
        """Over the cap, replace the oldest file that was not begun by one record that reports the loss."""
        if sum(f.size for f in self._files) <= self._cap_bytes:
            return
        for file in self._files[1:-1]:
            if file.count > 1:
                with suppress(OSError):
                    file.replace(notice(file.count, "the server was unreachable and the outbox was full"))
                return

    def _cut_torn_line(self) -> None:
        last = self._files[-1]
        if last.path.exists() and last.path.stat().st_size > last.size:
            os.truncate(last.path, last.size)


class _File:
    """One file of an outbox, with its size and number of records."""

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
        """Set the sequence number of the first record, by a rename."""
        if base == self.base:
            return
        path = self.path.with_name(f"{self.index:08d}-{base}.jsonl")
        if self.path.exists():
            self.path.rename(path)
        self.path, self.base = path, base

    def offset_of(self, seq: int) -> int:
        """Return the file offset of a record."""
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
    """Return a record that replaces `count` dropped records and says why."""
    text = f"[shoal] {count} records were dropped here: {why}"
    return json.dumps({"t": round(time.time(), 3), "e": "sys", "m": text, "dropped": count}).encode()
