"""The spool: file of one rank with one JSON line per record. The SDK writes to this local file only, never to the network.

Step records are queued and written by a thread, several times a second: between two training steps the CPU caches are cold,
and writing a single line there costs six times as much as in a batch. Every other record is written at once, after the steps
before it. A process that is killed therefore loses a fraction of a second of steps, none of them before its last checkpoint.
"""

# Why this is safe with several threads:
# - `_steps` is a deque: the training thread appends (atomic), and only a thread that holds `_lock` removes and writes. The
#   file descriptor, the line counter and `_held` are used under `_lock` only. So lines never interleave, and a record never
#   precedes the steps that were queued before it.
# - No wake-up is lost: the flusher clears `_is_awake` before it drains the queue. A step queued before that is drained; a
#   step queued after it finds the flag cleared and sets the event again.
# - The file is opened with O_APPEND by one process. A crash during a write leaves a torn last line; the next process of
#   this rank detects it when it opens the file, starts a new line and records `spool_torn`.
# - While the disk takes nothing, steps stay in `_steps` and other records in `_late`, which is written once `_steps` is empty:
#   a record may then follow later steps, but never precedes earlier ones. Of a batch that was cut short, the whole lines count
#   as written; the step of the torn line is written again.
# - A forked child gives up the file (`forget`) and takes a new lock, because the parent's may have been held at the fork.

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.core import records, system
from shoal.core.records import Kind
from shoal.sdk.context import Context

logger = logging.getLogger(__name__)

_RETRY_S = 5.0
_MOST_STEPS, _MOST_LATE = 100_000, 10_000
"""Steps and other records that wait in memory while the disk takes nothing; beyond that the oldest steps, or the newest
records, are dropped."""
_LAST_WAIT_S, _LAST_POLL_S = 120.0, 0.5
"""Seconds for which a job's process waits at its end for a disk that takes nothing, and how often it tries."""
_HELD_AT_MOST = 10_000
_FLUSH_S = 0.25
_AT_ONCE = 2_000
"""Maximum number of queued steps, and of steps written at once."""
_float_repr = float.__repr__


class Spool:
    """Append-only file of one rank. Any thread may write; a failing disk never raises an exception here."""

    def __init__(self, context: Context, *, clock: Callable[[], float] = time.time):
        self.path: Path = context.spool_dir / f"rank-{context.rank}.jsonl"
        self.checkpoint_at: float | None = None
        """Time at which the newest checkpoint of this process was committed, by the spool's clock."""
        self.dropped = 0
        """Number of records that could not be written."""
        self._context, self._clock = context, clock
        self._lock = threading.Lock()
        self._fd = -1
        self._line = 0
        self._torn = False
        self._retry_at = 0.0
        self._reported_dropped = 0
        self._warned = False
        self._held: list[tuple[float, str, dict[str, Any]]] = []
        self._late: deque[tuple[float, str, dict[str, Any]]] = deque()
        self._keys: dict[str, str] = {}
        self._closed = False
        self._steps: deque[tuple[int, Mapping[str, float], float]] = deque()
        self._flusher: threading.Thread | None = None
        self._is_awake = False
        """True if the flusher was woken and has not started to write yet."""
        self._news, self._ended = threading.Event(), threading.Event()

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def write(self, kind: str, **fields: Any) -> None:
        """Append one record. Outside the platform, kinds h, d, l and w wait until another kind creates the run directory."""
        now = self._clock()
        with self._lock:
            if kind == Kind.CHECKPOINT:
                self.checkpoint_at = now
            if self._closed:
                return
            self._write_steps()
            if self._fd < 0:
                if kind in records.PATIENT and not self._context.on_platform and len(self._held) < _HELD_AT_MOST:
                    self._held.append((now, kind, fields))
                    return
                self._open(now)
            if self._fd < 0 or self._steps or self._late or not self._append(now, kind, fields):
                self._keep(now, kind, fields)

    def put(self, record: records.Record) -> None:
        """Append one record."""
        self.write(record.kind, **record.encode())

    def write_step(self, step: int, values: Mapping[str, float], now: float) -> None:
        """Queue one k="s" record. This is the hot path: the caller has checked that the values are plain floats and ints.

        The caller must not change `values` afterwards.
        """
        self._steps.append((step, values, now))
        if not self._is_awake:
            self._is_awake = True
            self._wake_flusher()
        elif len(self._steps) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write the steps that are queued so far."""
        if self._waiting:
            with self._lock:
                self._write_steps()

    def _wake_flusher(self) -> None:
        if self._flusher is None:
            self.flush()  # the first step creates the file at once
            self._flusher = threading.Thread(target=self._keep_flushing, name="shoal-spool", daemon=True)
            self._flusher.start()
        self._news.set()

    def _keep_flushing(self) -> None:
        while not self._closed:
            self._news.wait(_RETRY_S if self._waiting else None)
            self._ended.wait(_FLUSH_S)
            self._news.clear()
            self._is_awake = False  # from here on a new step wakes this thread again
            self.flush()

    @property
    def _waiting(self) -> int:
        """Number of records that are not written yet."""
        return len(self._steps) + len(self._late)

    def _write_steps(self) -> None:
        """Write all queued steps, then the other records that wait; what the disk does not take keeps waiting."""
        steps = self._steps
        if self._closed:
            self.dropped += self._waiting
            steps.clear()
            self._late.clear()
        while steps:
            if self._fd < 0 and not self._open(self._clock()):
                while len(steps) > _MOST_STEPS:
                    steps.popleft()
                    self.dropped += 1
                return
            batch = [steps.popleft() for _ in range(min(len(steps), _AT_ONCE))]
            lines = [
                f'{{"t":{now:.3f},"n":{line},"k":"s","i":{step},"v":{{{self._inner(values)}}}}}'
                for line, (step, values, now) in enumerate(batch, self._line)
            ]
            written = self._write_lines(lines)
            if written < len(batch):
                steps.extendleft(reversed(batch[written:]))
                return
        while self._late and (self._fd >= 0 or self._open(self._clock())):
            if not self._append(*self._late[0]):
                return
            self._late.popleft()

    def _write_lines(self, lines: list[str]) -> int:
        """Write lines and return how many are whole on the disk: fewer than given if it fails."""
        data = "\n".join([*lines, ""]).encode()
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            self._give_up(error)
            return 0
        if written == len(data):
            self._line += len(lines)
            return len(lines)
        self._give_up(OSError(errno.ENOSPC, "cut short"))
        return data[: written + 1].count(b"\n")  # opening the file again ends a line that lacks only its end

    def _keep(self, now: float, kind: str, fields: dict[str, Any]) -> None:
        if len(self._late) < _MOST_LATE:
            self._late.append((now, kind, fields))
        else:
            self.dropped += 1

    def _inner(self, values: Mapping[str, float]) -> str:
        keys = self._keys
        inner = []
        for name, value in values.items():
            key = keys.get(name)
            if key is None:
                key = keys[name] = f"{json.dumps(name)}:"
            text = _float_repr(value) if value.__class__ is float else number(value)
            # Only nan and inf contain an n; JSON cannot hold them, so they are quoted.
            inner.append(f'{key}"{text}"' if "n" in text else f"{key}{text}")
        return ",".join(inner)

    def check(self) -> None:
        """Close the file if it was removed, so that the next record creates a new one.

        Costs a system call: call it once a second, not for every step.
        """
        with self._lock:
            if self._fd < 0:
                return
            with contextlib.suppress(OSError):
                if os.fstat(self._fd).st_nlink > 0:
                    return
                os.close(self._fd)
            self._fd = -1
            logger.warning("shoal: %s was removed; a new file is created, its earlier records are lost", self.path)

    def close(self) -> None:
        """Write what is queued and close the file. A job waits some time for a disk that takes nothing."""
        self._wait_for_disk()
        with self._lock:
            self._write_steps()
            self.dropped += self._waiting
            self._steps.clear()
            self._late.clear()
            if self._fd >= 0:
                os.close(self._fd)
            self._fd, self._closed = -1, True
        self._ended.set()
        self._news.set()
        if self._flusher is not None:
            self._flusher.join()
        if self.dropped:
            logger.warning("shoal: %d records could not be written to %s", self.dropped, self.path)

    def forget(self) -> None:
        """Give up the file in a forked child: it belongs to the parent."""
        self._lock = threading.Lock()
        self._closed, self._fd, self._flusher = True, -1, None
        self._steps.clear()
        self._late.clear()

    def _append(self, now: float, kind: str, fields: Mapping[str, Any]) -> bool:
        body = json.dumps(fields, default=str, separators=(",", ":"))[1:-1]
        start = "\n" if self._torn else ""
        line = self._line + (1 if self._torn else 0)
        data = f'{start}{{"t":{now:.3f},"n":{line},"k":"{kind}"{"," if body else ""}{body}}}\n'.encode()
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            self._give_up(error)
            return False
        if written < len(data):
            self._give_up(OSError(errno.ENOSPC, "cut short"))
            return written == len(data) - 1
        self._line, self._torn = line + 1, False
        return True

    def _open(self, now: float) -> bool:
        if self._closed or self._retry_at - _RETRY_S <= now < self._retry_at:  # a clock set back must not prolong it
            return False
        try:
            self._context.make_dirs()
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | system.CLOEXEC, 0o644)
            self._line, self._torn = _lines(self._fd)
        except OSError as error:
            self._give_up(error)
            return False
        news: list[tuple[float, str, dict[str, Any]]] = []
        if self._torn:
            news.append((now, Kind.WARNING, {"code": "spool_torn", "text": "the line before this one was cut short"}))
        if lost := self.dropped - self._reported_dropped:
            news.append((now, Kind.WARNING, {"code": "spool_dropped", "text": f"{lost} records could not be written"}))
        for record in news:
            if not self._append(*record):
                return False
        self._reported_dropped = self.dropped
        while self._held:
            if not self._append(*self._held[0]):
                return False
            del self._held[0]
        return True

    def _wait_for_disk(self) -> None:
        until = time.monotonic() + (_LAST_WAIT_S if self._context.on_platform else 0.0)
        said = False
        while not self._closed:
            self.flush()
            if not self._waiting or time.monotonic() >= until:
                return
            if not said:
                said = True
                logger.warning("shoal: waiting for room for the last %d records", self._waiting)
            time.sleep(_LAST_POLL_S)
            self._retry_at = 0.0

    def _give_up(self, error: OSError) -> None:
        """Close the file for some seconds after an error; opening it again finds its true end and records what was lost."""
        if not self._warned:
            self._warned = True
            logger.warning("shoal: metrics cannot be written to %s: %s; training continues", self.path, error)
        self._retry_at = self._clock() + _RETRY_S
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


def number(value: float) -> str:
    """Return a plain number as JSON text. nan and inf are not quoted: the caller does that."""
    return _float_repr(value) if isinstance(value, float) else int.__repr__(value)


def quoted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same values with nan and inf as strings, because JSON cannot hold them."""
    return {k: v if not isinstance(v, float) or v - v == 0.0 else number(v) for k, v in values.items()}


def _lines(fd: int) -> tuple[int, bool]:
    """Return the number of whole lines in the file, and whether a torn line follows them."""
    count, last, at = 0, b"\n", 0
    while piece := os.pread(fd, 1 << 20, at):
        count, last, at = count + piece.count(b"\n"), piece[-1:], at + len(piece)
    return count, last != b"\n"
