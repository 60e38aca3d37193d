"""SIGTERM and SIGINT become a wish to stop. Handlers only set flags, then call the script's own.

Launchers signal whole process groups (torchrun does), so data-loading children forked meanwhile must outlive the first
signal, or the last steps before the save fail for want of data; they look at a flag shared with their parent.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CHILD_WAITS_S = 0.2
_NO, _ASKED, _OVER = 0, 1, 2


class Signals:
    """Installed by `install`, undone by `restore`; `fileno` becomes readable when a signal arrived, even while the
    main thread is deep inside a collective and no Python handler can run."""

    def __init__(self, on_signal: Callable[[int], None], ready: Callable[[], bool]):
        self._on_signal, self._ready = on_signal, ready
        self._previous: dict[int, Any] = {}
        self._seen: set[int] = set()
        self._pid = os.getpid()
        self._shared: mmap.mmap | None = None
        self._read: socket.socket | None = None
        self._write: socket.socket | None = None

    def install(self) -> bool:
        """False where handlers cannot be set: outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return False
        self._shared = mmap.mmap(-1, 1)
        for signum in _SIGNALS:
            previous = signal.getsignal(signum)
            if previous is not signal.SIG_IGN:
                self._previous[signum] = previous
                signal.signal(signum, self._handle)
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        before = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
        global _active
        _active = self
        return True

    def restore(self) -> None:
        """Give the handlers back. Only in the main thread, only in the process that installed them."""
        global _active
        if os.getpid() != self._pid or threading.current_thread() is not threading.main_thread():
            return
        if self._shared is not None:
            self._shared[0] = _OVER
        for signum, previous in self._previous.items():
            if signal.getsignal(signum) == self._handle:
                signal.signal(signum, previous if previous is not None else signal.SIG_DFL)
        self._previous = {}
        if self._write is not None and self._read is not None:
            before = signal.set_wakeup_fd(-1)
            if before not in (-1, self._write.fileno()):
                signal.set_wakeup_fd(before)
            self._write.close()
            self._read.close()
        self._read = self._write = None
        if _active is self:
            _active = None

    def take_again(self) -> None:
        """In a forked child whose handlers were replaced."""
        for signum in self._previous:
            signal.signal(signum, self._handle)

    def fileno(self) -> int:
        return self._read.fileno() if self._read is not None else -1

    def wake(self) -> None:
        """Make `wait` return at once; from any thread."""
        with contextlib.suppress(OSError, AttributeError):
            self._write.send(b"\0")  # type: ignore[union-attr]

    def wait(self, timeout_s: float) -> list[int]:
        """Signals that arrived, for a thread that sleeps here between its rounds."""
        if self._read is None:
            time.sleep(timeout_s)
            return []
        try:
            if not select.select([self._read], [], [], timeout_s)[0]:
                return []
            arrived = [n for n in self._read.recv(64) if n in self._previous]
        except (OSError, ValueError):
            return []
        if arrived and self._ready():
            self._flag()
            return arrived
        return []

    def _flag(self) -> None:
        if self._shared is not None and self._shared[0] == _NO:
            self._shared[0] = _ASKED

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            if not self._parent_was_asked():
                self._pass_on(signum, frame)
            return
        again = signum in self._seen and signum == signal.SIGINT
        if again or not self._ready():
            self._pass_on(signum, frame)
            return
        self._seen.add(signum)
        self._flag()
        self._on_signal(signum)
        previous = self._previous.get(signum)
        if callable(previous) and previous is not signal.default_int_handler:
            previous(signum, frame)

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        """What would have happened without us."""
        previous = self._previous.get(signum, signal.SIG_DFL)
        if callable(previous):
            previous(signum, frame)
        elif previous is not signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)

    def _parent_was_asked(self) -> bool:
        """In a forked child. The same signal may reach it some milliseconds before its parent."""
        shared, read = self._shared, self._read
        until = time.monotonic() + _CHILD_WAITS_S
        while shared is not None and os.getppid() == self._pid:
            if shared[0] != _NO:
                return shared[0] == _ASKED
            left = until - time.monotonic()
            if left <= 0:
                return False
            if read is not None and select.select([read], [], [], min(left, 0.02))[0]:
                return True
        return False


_active: Signals | None = None


def in_data_worker(then: Callable[[int], None] | None, worker: int) -> None:
    """worker_init_fn of torch's loaders: their workers end at the first SIGTERM by a handler of torch's own."""
    if _active is not None:
        _active.take_again()
    if then is not None:
        then(worker)


def _after_fork() -> None:
    """Signals of a child are not news for its parent."""
    if _active is not None and _active.fileno() >= 0:
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_after_fork)
