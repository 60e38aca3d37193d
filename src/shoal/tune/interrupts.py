"""^C is raised where it cannot be lost.

Python raises KeyboardInterrupt at the next instruction, whatever that is. In a finalizer, a callback of the garbage
collector or a hook of `os.fork` it is printed and dropped, and the program continues as if nobody had pressed ^C.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class HeldInterrupts:
    """Context in which a ^C waits for the next `check`. A second one before that is raised at once."""

    def __init__(self) -> None:
        self._came: tuple[int, FrameType | None] | None = None
        self._before: Any = None

    def __enter__(self) -> HeldInterrupts:
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._before = handler
            signal.signal(signal.SIGINT, self._hold)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self.check()

    def check(self) -> None:
        """Call the handler of the program if ^C was pressed; unless changed, it raises KeyboardInterrupt."""
        came, self._came = self._came, None
        if came is not None:
            self._before(*came)

    def _hold(self, signum: int, frame: FrameType | None) -> None:
        if self._came is not None:
            self._before(signum, frame)
        self._came = (signum, frame)
