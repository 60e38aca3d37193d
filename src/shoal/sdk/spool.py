"""The spool: what a rank has to tell, one JSON line per record, appended to a local file and never to the network.

Steps are put down as they are and written by a thread, some times a second: between two training steps no cache is warm,
and making and writing a line there costs six times what it costs in a row. Every other record is written at once, after the
steps before it. So a process that is killed has lost a fraction of a second of steps, none of them before its last checkpoint.
"""

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

from shoal.sdk.context import Context

logger = logging.getLogger(__name__)

_PATIENT = frozenset("hdlw")
"""Kinds that alone are no reason to make a run directory."""
_RETRY_S = 5.0
_HELD_AT_MOST = 10_000
_FLUSH_S = 0.25
_AT_ONCE = 2_000
"""Steps that wait at most, and that are written together."""
_float_repr = float.__repr__


class Spool:
    """Append-only file of one rank. Any thread may write; nothing here ever raises because of a disk."""

    def __init__(self, context: Context, *, clock: Callable[[], float] = time.time):
        self.path: Path = context.spool_dir / f"rank-{context.rank}.jsonl"
        self.checkpoint_at: float | None = None
        """When the newest checkpoint of this process was committed, by the spool's clock."""
        self.dropped = 0
        """Records that could not be written."""
        self._context, self._clock = context, clock
        self._lock = threading.Lock()
        self._fd = -1
        self._line = 0
        self._torn = False
        self._retry_at = 0.0
        self._told_dropped = 0
        self._warned = False
        self._held: list[tuple[float, str, dict[str, Any]]] = []
        self._keys: dict[str, str] = {}
        self._closed = False
        self._steps: deque[tuple[int, Mapping[str, float], float]] = deque()
        self._flusher: threading.Thread | None = None
        self._is_told = False
        """The flusher knows that there is something to write."""
        self._news, self._ended = threading.Event(), threading.Event()

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def write(self, kind: str, **fields: Any) -> None:
        """Append one record. Kinds h, d, l and w wait for the first record that makes the run worth a directory."""
        now = self._clock()
        with self._lock:
            if kind == "c":
                self.checkpoint_at = now
            if self._closed:
                return
            self._write_steps()
            if self._fd < 0:
                if kind in _PATIENT and not self._context.on_platform and len(self._held) < _HELD_AT_MOST:
                    self._held.append((now, kind, fields))
                    return
                if not self._open(now):
                    self.dropped += 1
                    return
            if not self._append(now, kind, fields):
                self.dropped += 1

    def write_step(self, step: int, values: Mapping[str, float], now: float) -> None:
        """Put down one k="s" record: the hot path. Values are plain floats and ints, checked by the caller, who lets go of them."""
        self._steps.append((step, values, now))
        if not self._is_told:
            self._is_told = True
            self._tell_flusher()
        elif len(self._steps) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write the steps that were put down so far."""
        if self._steps:
            with self._lock:
                self._write_steps()

    def _tell_flusher(self) -> None:
        if self._flusher is None:
            self.flush()  # the first step makes the file, at once
            self._flusher = threading.Thread(target=self._keep_flushing, name="shoal-spool", daemon=True)
            self._flusher.start()
        self._news.set()

    def _keep_flushing(self) -> None:
        while not self._closed:
            self._news.wait()
            self._ended.wait(_FLUSH_S)
            self._news.clear()
            self._is_told = False  # from here on a new step says so again
            self.flush()

    def _write_steps(self) -> None:
        lines: list[str] = []
        steps = self._steps
        while steps:
            step, values, now = steps.popleft()
            if self._closed or (self._fd < 0 and not self._open(now)):
                self.dropped += 1
                continue
            lines.append(
                f'{{"t":{now:.3f},"n":{self._line + len(lines)},"k":"s","i":{step},"v":{{{self._inner(values)}}}}}'
            )
            if len(lines) >= _AT_ONCE:
                self._write_lines(lines)
                lines = []
        if lines:
            self._write_lines(lines)

    def _write_lines(self, lines: list[str]) -> None:
        data = "\n".join([*lines, ""]).encode()
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                raise OSError(errno.ENOSPC, "cut short")
            self._line += len(lines)
        except OSError as error:
            self._give_up(error)
            self.dropped += len(lines)

    def _inner(self, values: Mapping[str, float]) -> str:
        keys = self._keys
        inner = []
        for name, value in values.items():
            key = keys.get(name)
            if key is None:
                key = keys[name] = f"{json.dumps(name)}:"
            text = _float_repr(value) if value.__class__ is float else number(value)
            # Only nan and inf have an n in them.
            inner.append(f'{key}"{text}"' if "n" in text else f"{key}{text}")
        return ",".join(inner)

    def check(self) -> None:
        """Follow the file if somebody removed it. Costs a system call: for once a second, not for every step."""
        with self._lock:
            if self._fd < 0:
                return
            with contextlib.suppress(OSError):
                if os.fstat(self._fd).st_nlink > 0:
                    return
                os.close(self._fd)
            self._fd = -1
            logger.warning("shoal: %s was removed; it is made anew, what was in it is lost", self.path)

    def close(self) -> None:
        with self._lock:
            self._write_steps()
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
        """In a forked child: the file is the parent's."""
        self._lock = threading.Lock()
        self._closed, self._fd, self._flusher = True, -1, None
        self._steps.clear()

    def _append(self, now: float, kind: str, fields: Mapping[str, Any]) -> bool:
        body = json.dumps(fields, default=str, separators=(",", ":"))[1:-1]
        start = "\n" if self._torn else ""
        line = self._line + (1 if self._torn else 0)
        data = f'{start}{{"t":{now:.3f},"n":{line},"k":"{kind}"{"," if body else ""}{body}}}\n'.encode()
        try:
            if os.write(self._fd, data) < len(data):
                raise OSError(errno.ENOSPC, "cut short")
        except OSError as error:
            self._give_up(error)
            return False
        self._line, self._torn = line + 1, False
        return True

    def _open(self, now: float) -> bool:
        if self._closed or now < self._retry_at:
            return False
        try:
            self._context.make_dirs()
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._line, self._torn = _lines(self._fd)
        except OSError as error:
            self._give_up(error)
            return False
        news: list[tuple[float, str, dict[str, Any]]] = []
        if self._torn:
            news.append((now, "w", {"code": "spool_torn", "text": "the line before this one was cut short"}))
        if lost := self.dropped - self._told_dropped:
            news.append((now, "w", {"code": "spool_dropped", "text": f"{lost} records could not be written"}))
        for record in news:
            if not self._append(*record):
                return False
        self._told_dropped = self.dropped
        while self._held:
            if not self._append(*self._held[0]):
                return False
            del self._held[0]
        return True

    def _give_up(self, error: OSError) -> None:
        """Leave the file for a while: opening it again finds its true end, and tells what was dropped meanwhile."""
        if not self._warned:
            self._warned = True
            logger.warning("shoal: metrics cannot be written to %s: %s; training goes on", self.path, error)
        self._retry_at = self._clock() + _RETRY_S
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


def number(value: float) -> str:
    """JSON of a plain number; nan and inf come out bare, for the caller to quote."""
    return _float_repr(value) if isinstance(value, float) else int.__repr__(value)


def quoted(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with nan and inf as strings, which JSON cannot hold."""
    return {k: v if not isinstance(v, float) or v - v == 0.0 else number(v) for k, v in values.items()}


def _lines(fd: int) -> tuple[int, bool]:
    """Whole lines already in the file, and whether a torn one follows them."""
    count, last, at = 0, b"\n", 0
    while piece := os.pread(fd, 1 << 20, at):
        count, last, at = count + piece.count(b"\n"), piece[-1:], at + len(piece)
    return count, last != b"\n"
