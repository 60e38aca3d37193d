"""Signal handling for commands that must clean up: SIGTERM and SIGHUP act like Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_ENDS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))  # Windows has no SIGHUP
"""Signals of `kill` and of a terminal that is closed."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP inside this context, unless they are ignored (nohup)."""

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    heard = [s for s in _ENDS if signal.getsignal(s) is not signal.SIG_IGN]
    before = {s: signal.signal(s, interrupt) for s in heard}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
