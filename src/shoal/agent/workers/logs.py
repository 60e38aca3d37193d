"""Captures the workers' output: reads their pipes and writes log records to the outbox. One thread, bounded memory.

Why this is safe: only the capture thread reads the pipes, splits lines and changes `_sources`' contents. Other threads add a
pipe to `_new` under `_lock` and wake the thread by a byte in its own pipe; `tail` reads under the same lock in which the list
of sources grows. An exception in one step is logged and the thread continues, because full pipes would block the workers
forever.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from shoal.agent.outbox.outbox import Outbox
from shoal.agent.workers.lines import BAR_EVERY_S, Redactor, Splitter, TokenBucket, pieces

logger = logging.getLogger(__name__)

DEFAULT_RATE_KB_S = 2048
BURST_S = 8
"""Size of a burst, in seconds at the full rate: 16 MiB by default."""
TAIL_BYTES = 16 << 10
_READ = 256 << 10
_OVERHEAD = 48
"""Bytes of a record besides its text, so that empty lines count too."""
_REPORT_DROPPED_EVERY_S = 5.0
_AFTER_FAILURE_S = 0.05
_RESERVE, _RESERVE_RATE = 32 << 10, 2 << 10
"""Bytes (and bytes per second) reserved for each stream: a flood on stdout must not displace the traceback on stderr."""


class Capture:
    """Reads the output of all workers in one thread. Lines of Shoal itself have rank None and the stream "sys"."""

    def __init__(self, outbox: Outbox, redact: Redactor, rate_kb_s: int = DEFAULT_RATE_KB_S):
        self._outbox, self._redact, self._rate = outbox, redact, rate_kb_s << 10
        self._bucket = TokenBucket(self._rate, self._rate * BURST_S, time.monotonic())
        self._dropped_lines = self._dropped_bytes = 0
        self._reported_at = 0.0
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        self._lock = threading.Lock()
        self._new: list[_Source] = []
        self._sources: list[_Source] = []
        self._closing = False
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)
        self.watched_rank = -1
        self.on_line: Callable[[bytes], object] = lambda line: None
        """Called with each line of the watched rank that was not dropped."""

    def start(self) -> None:
        self._thread.start()

    def pipe(self, rank: int | None, stream: str) -> int:
        """Create a pipe and capture it; return the write end, which the caller must close."""
        read, write = os.pipe2(os.O_CLOEXEC)
        self.add(read, rank, stream)
        return write

    def add(self, fd: int, rank: int | None, stream: str) -> None:
        """Capture this descriptor from now on; it is closed at the end of its stream."""
        os.set_blocking(fd, False)
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 1 << 20)
        with self._lock:
            self._new.append(_Source(fd, rank, stream, Splitter(self._redact, self._redact.longest)))
        self._wake()

    def write_message(self, text: str) -> None:
        """Add a line from Shoal itself to the job's output."""
        text = self.redact(text)
        logger.info("%s", text)
        self._outbox.append([_record(time.time(), None, "sys", text.encode("utf-8", "replace"))])

    def redact(self, text: str) -> str:
        return self._redact(text.encode("utf-8", "replace")).decode()

    def tail(self, rank: int | None, stream: str) -> str:
        """Return the last TAIL_BYTES of a rank's stream, including lines that were dropped from the log."""
        with self._lock:
            found = [bytes(s.tail) for s in self._sources if s.rank == rank and s.stream == stream]
        return self.redact(b"".join(found).decode("utf-8", "replace"))

    def close(self, timeout_s: float = 30.0) -> None:
        """Read what the pipes still hold, then stop. Does not wait for their ends: a daemon may keep one open forever."""
        self._closing = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake_w, b"x")

    def _run(self) -> None:
        while not self._closing:
            busy = any(s.splitter.waiting for s in self._sources) or self._dropped_lines
            self._survive(partial(self._step, BAR_EVERY_S / 4 if busy else None))
        self._survive(partial(self._step, 0))
        self._survive(self._drain)

    def _survive(self, work: Callable[[], object]) -> None:
        """Call `work`; log an exception instead of raising it.

        If this thread ended, full pipes would block the workers forever.
        """
        try:
            work()
        except Exception as error:
            if str(error) != self._said:
                logger.exception("capture failed")
            self._said = str(error)
            time.sleep(_AFTER_FAILURE_S)

    def _step(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                with suppress(BlockingIOError):
                    os.read(self._wake_r, 4096)
                self._register_new()
            elif not self._read(key.data):
                self._end(key.data)
        now = time.monotonic()
        for source in self._sources:
            if source.splitter.waiting:
                self._keep(source, source.splitter.due(now))
        if self._dropped_lines and now - self._reported_at >= _REPORT_DROPPED_EVERY_S:
            self._report_dropped(now)

    def _drain(self) -> None:
        deadline = time.monotonic() + 5
        for source in list(self._sources):
            while not source.ended and time.monotonic() < deadline:
                before = source.total
                if not self._read(source) or source.total == before:
                    break
            self._end(source)
        self._report_dropped(time.monotonic())

    def _register_new(self) -> None:
        with self._lock:
            added, self._new = self._new, []
            self._sources.extend(added)
        for source in added:
            self._selector.register(source.fd, selectors.EVENT_READ, source)

    def _read(self, source: _Source) -> bool:
        """Read what a source has now; return False at the end of its stream."""
        try:
            data = os.read(source.fd, _READ)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        source.total += len(data)
        source.remember(data)
        now = time.monotonic()
        # A flood is dropped without splitting it until the bucket has refilled to a useful level: splitting costs CPU time
        # that heartbeats need.
        enough = self._rate / 8 if self._dropped_bytes else _OVERHEAD
        if max(self._bucket.refill(now), source.reserve.refill(now) * 8) < enough:
            self._drop(source, source.splitter.skip(data), len(data))
        else:
            self._keep(source, source.splitter.feed(data, now))
        return True

    def _end(self, source: _Source) -> None:
        if source.ended:
            return
        source.ended = True
        with suppress(KeyError, ValueError):
            self._selector.unregister(source.fd)
        os.close(source.fd)
        if source.missed and self._dropped_lines:
            self._rescue(source)
        self._keep(source, source.splitter.close())

    def _keep(self, source: _Source, lines: list[bytes]) -> None:
        if not lines:
            return
        now, records = time.time(), []
        for number, line in enumerate(lines):
            cost = len(line) + _OVERHEAD
            if not (self._bucket.consume(cost) or source.reserve.consume(cost)):
                rest = lines[number:]
                self._drop(source, len(rest), sum(map(len, rest)))
                break
            source.missed = 0
            records += self._records(source, line, now)
            if source.rank == self.watched_rank:
                self._survive(partial(self.on_line, line))
        self._outbox.append(records)

    def _records(self, source: _Source, line: bytes, now: float) -> list[bytes]:
        return [_record(now, source.rank, source.stream, piece) for piece in pieces(self._redact(line))]

    def _drop(self, source: _Source, lines: int, size: int) -> None:
        if not self._dropped_bytes:
            self._reported_at = time.monotonic()
        source.missed += lines
        self._dropped_lines += lines
        self._dropped_bytes += size

    def _rescue(self, source: _Source) -> None:
        """Log the last lines of a stream even if they exceed the rate: they usually say why it ended."""
        found = source.last_lines()[-min(source.missed, self._dropped_lines) :] if source.missed else []
        self._dropped_lines -= len(found)
        self._dropped_bytes = max(1, self._dropped_bytes - sum(map(len, found)))
        now = time.time()
        self._outbox.append([record for line in found for record in self._records(source, line, now)])

    def _report_dropped(self, now: float) -> None:
        if self._dropped_bytes:
            self.write_message(
                f"[shoal] {self._dropped_lines} lines ({self._dropped_bytes / 2**20:.1f} MiB) dropped: "
                f"output above {self._rate >> 10} KiB/s"
            )
        self._dropped_lines = self._dropped_bytes = 0
        self._reported_at = now


class _Source:
    """State of one output stream of one rank."""

    __slots__ = ("ended", "fd", "missed", "rank", "reserve", "splitter", "stream", "tail", "total")

    def __init__(self, fd: int, rank: int | None, stream: str, splitter: Splitter):
        self.fd, self.rank, self.stream, self.splitter = fd, rank, stream, splitter
        self.tail = bytearray()
        self.total = 0
        self.missed = 0
        """Lines dropped since the last one kept."""
        self.ended = False
        self.reserve = TokenBucket(_RESERVE_RATE, _RESERVE, time.monotonic())

    def remember(self, data: bytes) -> None:
        self.tail += data[-TAIL_BYTES:]
        if len(self.tail) > TAIL_BYTES:
            del self.tail[:-TAIL_BYTES]

    def last_lines(self) -> list[bytes]:
        """Return the complete lines in the tail."""
        lines = bytes(self.tail).split(b"\n")[:-1]
        return lines if self.total <= TAIL_BYTES else lines[1:]


def _record(at: float, rank: int | None, stream: str, text: bytes) -> bytes:
    record = {"t": round(at, 3), "r": rank, "e": stream, "m": text.decode("utf-8", "replace")}
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
