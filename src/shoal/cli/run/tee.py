"""Output of the workers of a local run: copied to this terminal as it arrives, and to one file per rank.

One thread ("tee") reads all pipes and is the only one that touches the selector, the splitters and the log files until
`close` has joined it. Other threads hand over new pipes through `_new`, under `_lock`, and wake the thread with a byte in a
pipe. `_sources` is changed only under the lock, so that `tail` can be called from any thread.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from shoal.agent.workers.lines import BAR_EVERY_S, Splitter

_READ = 64 << 10
_TAIL = 16 << 10


class Tee:
    """Thread that copies the workers' output.

    The bytes of a single worker pass unchanged, through a pseudo-terminal if the target is a terminal. With several workers,
    each line gets the rank as a prefix.
    """

    def __init__(self, logs: Path, *, num_workers: int, stdout: int = 1, stderr: int = 2):
        self._logs, self._prefixed = logs, num_workers > 1
        self._targets = {"out": stdout, "err": stderr, "sys": stderr}
        self._files: dict[int, BinaryIO] = {}
        self._sources: list[_Source] = []
        self._new: list[_Source] = []
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tee", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def pipe(self, rank: int | None, stream: str) -> int:
        """Return a file descriptor for a worker to write to. The caller closes it."""
        target = self._targets[stream]
        if rank is not None and not self._prefixed and os.isatty(target):
            read, write = _terminal(target)
        else:
            read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        with self._lock:
            self._new.append(_Source(read, rank, stream))
        self._wake()
        return write

    def tail(self, rank: int | None, stream: str) -> str:
        """Return the end of a rank's output."""
        with self._lock:
            found = [bytes(s.tail) for s in self._sources if s.rank == rank and s.stream == stream]
        return b"".join(found).decode("utf-8", "replace")

    def close(self) -> None:
        """Read the rest of the pipes, end the thread and close the files."""
        self._closing = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(10)
        for file in self._files.values():
            file.close()

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake_w, b"x")

    def _run(self) -> None:
        while not self._closing:
            waiting = any(s.splitter.waiting for s in self._sources)
            self._step(BAR_EVERY_S / 4 if waiting else None)
        self._step(0)
        for source in [s for s in self._sources if not s.ended]:
            while self._read(source):
                pass
            self._end(source)

    def _step(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                with suppress(BlockingIOError):
                    os.read(self._wake_r, 4096)
                self._register_new()
            elif self._read(key.data) is None:
                self._end(key.data)
        now = time.monotonic()
        for source in self._sources:
            if source.splitter.waiting:
                self._print_lines(source, source.splitter.due(now))

    def _register_new(self) -> None:
        with self._lock:
            added, self._new = self._new, []
            self._sources += added
        for source in added:
            self._selector.register(source.fd, selectors.EVENT_READ, source)

    def _read(self, source: _Source) -> int | None:
        """Read and copy one block; return its length, or None at the end of the stream."""
        try:
            data = os.read(source.fd, _READ)
        except BlockingIOError:
            return 0
        except OSError:  # the end of a pseudo-terminal
            return None
        if not data:
            return None
        source.remember(data)
        if not self._prefixed:
            self._show(source, data)
        self._print_lines(source, source.splitter.feed(data, time.monotonic()))
        return len(data)

    def _end(self, source: _Source) -> None:
        source.ended = True
        self._selector.unregister(source.fd)
        os.close(source.fd)
        self._print_lines(source, source.splitter.close())

    def _print_lines(self, source: _Source, lines: list[bytes]) -> None:
        if not lines:
            return
        if self._prefixed:
            mark = b"[shoal] " if source.rank is None else b"[rank%d] " % source.rank
            self._show(source, b"".join(mark + line + b"\n" for line in lines))
        if source.rank is not None:
            file = self._file(source.rank)
            file.write(b"".join(line + b"\n" for line in lines))
            file.flush()

    def _file(self, rank: int) -> BinaryIO:
        if rank not in self._files:
            self._logs.mkdir(parents=True, exist_ok=True)
            self._files[rank] = (self._logs / f"rank-{rank}.log").open("ab")
        return self._files[rank]

    def _show(self, source: _Source, data: bytes) -> None:
        target = self._targets[source.stream]
        view = memoryview(data)
        while view and target >= 0:
            try:
                view = view[os.write(target, view) :]
            except BlockingIOError:
                selectors_wait(target)
            except OSError:  # the reader closed the pipe (`| head`): the log files still get everything
                self._targets[source.stream] = -1
                return


class _Source:
    __slots__ = ("ended", "fd", "rank", "splitter", "stream", "tail")

    def __init__(self, fd: int, rank: int | None, stream: str):
        self.fd, self.rank, self.stream = fd, rank, stream
        self.splitter = Splitter()
        self.tail = bytearray()
        self.ended = False

    def remember(self, data: bytes) -> None:
        self.tail += data[-_TAIL:]
        del self.tail[:-_TAIL]


def selectors_wait(fd: int) -> None:
    """Wait until the descriptor can be written to, at most one second."""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_WRITE)
        selector.select(1.0)


def _terminal(like: int) -> tuple[int, int]:
    """Open a pseudo-terminal of the same size that passes bytes unchanged; return (read, write)."""
    import fcntl
    import termios

    read, write = os.openpty()
    attributes = termios.tcgetattr(write)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(write, termios.TCSANOW, attributes)
    with suppress(OSError):
        fcntl.ioctl(write, termios.TIOCSWINSZ, fcntl.ioctl(like, termios.TIOCGWINSZ, b"\0" * 8))
    return read, write
