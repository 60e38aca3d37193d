"""Termination signals of a process whose main thread waits for workers: every signal wakes it, whichever thread receives it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

TERM_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopSignals:
    """Pipe that wakes a main loop, for signals and for requests of other threads.

    Python runs a signal's handler in the main thread, between two instructions. If the kernel gives the signal to another
    thread, or just before the main thread begins to wait, the handler would not run before the wait ends. So the signal
    itself writes to the pipe (signal.set_wakeup_fd), and the main loop waits for `wake_r` too.
    """

    def __init__(self) -> None:
        self.wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def install(self, on_signal: Callable[[int], None]) -> None:
        """Call `on_signal` with the number of each signal from now on. Only the main thread may call this."""
        for signum in TERM_SIGNALS:
            self._before[signum] = signal.signal(signum, lambda number, _frame: on_signal(number))
        self._wakeup_before = signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)

    def close(self) -> None:
        """Restore the handlers from before `install`, and close the pipe."""
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._before = {}
        os.close(self.wake_r)
        os.close(self._wake_w)

    def wake(self) -> None:
        """Wake the main loop. Any thread and any signal handler may call this."""
        try:
            os.write(self._wake_w, b"x")
        except BlockingIOError:
            pass

    def clear(self) -> None:
        """Empty the pipe; the main loop calls this before it reads what was requested."""
        try:
            while os.read(self.wake_r, 4096):
                pass
        except BlockingIOError:
            pass
