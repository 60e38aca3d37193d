"""Commands that leave something behind unless they may tidy up: being ended by others is to them what Ctrl-C is."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_ENDS = (signal.SIGTERM, signal.SIGHUP)
"""Of whoever ends processes, and of a terminal that is closed."""


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, unless they are ignored (nohup)."""

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    heard = [s for s in _ENDS if signal.getsignal(s) is not signal.SIG_IGN]
    before = {s: signal.signal(s, interrupt) for s in heard}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
