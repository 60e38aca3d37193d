"""Signal handlers that turn SIGTERM and SIGINT into a stop request. They only set flags, then call the script's own handler.

Launchers such as torchrun signal whole process groups, so data-loading children must survive the first signal: otherwise
the last steps before the save fail because no data arrives. The children check a flag that they share with their parent.
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
    """Signal handlers of this process, set by `install` and removed by `restore`.

    `fileno` becomes readable when a signal arrives, even while the main thread is inside a collective and no Python
    handler can run.
    """

    def __init__(self, on_signal: Callable[[int], None], ready: Callable[[], bool]):
        self._on_signal, self._ready = on_signal, ready
        self._previous: dict[int, Any] = {}
        self._seen: set[int] = set()
        self._pid = os.getpid()
        self._shared: mmap.mmap | None = None
        self._read: socket.socket | None = None
        self._write: socket.socket | None = None

    def install(self) -> bool:
        """Set the handlers. Return False outside the main thread, where Python cannot set them."""
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
        """Restore the handlers from before; does nothing outside the main thread and in forked children."""
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

    def reinstall(self) -> None:
        """Set the handlers again in a forked child in which a library replaced them."""
        for signum in self._previous:
            signal.signal(signum, self._handle)

    def fileno(self) -> int:
        return self._read.fileno() if self._read is not None else -1

    def wake(self) -> None:
        """Make `wait` return at once. Any thread may call it."""
        with contextlib.suppress(OSError, AttributeError):
            self._write.send(b"\0")  # type: ignore[union-attr]

    def wait(self, timeout_s: float) -> list[int]:
        """Sleep up to `timeout_s`; return the signals that arrived meanwhile. For one background thread."""
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
            if not self._parent_is_stopping():
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
        """Do what would have happened without this handler: call the previous one, or take the default action."""
        previous = self._previous.get(signum, signal.SIG_DFL)
        if callable(previous):
            previous(signum, frame)
        elif previous is not signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)

    def _parent_is_stopping(self) -> bool:
        """Check, in a forked child, whether the parent was asked to stop too.

        Waits up to _CHILD_WAITS_S, because the signal may reach the child some milliseconds before the parent.
        """
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
    """Set our signal handlers in a worker of a torch loader (worker_init_fn): torch's own handler ends it at SIGTERM."""
    if _active is not None:
        _active.reinstall()
    if then is not None:
        then(worker)


def _after_fork() -> None:
    """Stop a forked child from reporting its signals through the wake-up socket of its parent."""
    if _active is not None and _active.fileno() >= 0:
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_after_fork)
