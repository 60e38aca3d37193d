"""Wait for a server that starts or is busy, as long as it lives and makes progress. Reports its state; never ends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shoal.client.server_record import own_record, starting_record
from shoal.core.errors import TimedOut
from shoal.core.settings import Layout

PATIENCE_S = 120.0
"""Seconds without a sign of progress after which the client stops waiting. The server is left running."""
FIRST_WORD_S, NEXT_WORD_S, NEXT_PHASE_S = 5.0, 15.0, 2.0
"""Seconds until the first message, between later messages, and at least before a message about a new phase."""
POLL_S = 0.05


class Patience:
    """One wait for the server of a data directory.

    `step` sleeps briefly, and raises TimedOut if there was no progress for `patience_s`.
    """

    def __init__(self, layout: Layout, say: Callable[[str], None], patience_s: float = PATIENCE_S):
        self._layout, self.say, self._patience_s = layout, say, patience_s
        self._began = self._moved_at = time.monotonic()
        self._next_word = self._began + FIRST_WORD_S
        self._signs: object = None
        self._reported, self._reported_at = "", 0.0

    def step(self, pid: int | None = None) -> None:
        """Sleep briefly, and report the server's state from time to time. `pid` is the server's process, if known."""
        doing, known = self._doing()
        signs = (doing, _size(self._layout.server_log), _work_done(pid or known))
        now = time.monotonic()
        if signs != self._signs:
            self._signs, self._moved_at = signs, now
        if now - self._moved_at > self._patience_s:
            raise TimedOut(
                f"The server (pid {pid or known or 'unknown'}) is {doing} and has shown no progress for "
                f"{now - self._moved_at:.0f} s. It was left running.",
                hint="See its log: shoal server log",
            )
        self._report(doing, now)
        time.sleep(POLL_S)

    def _doing(self) -> tuple[str, int | None]:
        if record := starting_record(self._layout):
            return f"starting: {record.doing}" if record.doing else "starting", record.pid
        if record := own_record(self._layout):
            return f"running at {record.url}, but busy: it does not answer yet", record.pid
        return "starting", None

    def _report(self, doing: str, now: float) -> None:
        """Print the server's state: after the first seconds, then at each new phase, and at intervals."""
        is_new = doing != self._reported and now >= self._reported_at + NEXT_PHASE_S
        if now < self._next_word and not (self._reported and is_new):
            return
        self.say(f"The server is {doing} ({now - self._began:.0f} s so far).")
        self._reported, self._reported_at, self._next_word = doing, now, now + NEXT_WORD_S


def _work_done(pid: int | None) -> tuple[str, ...]:
    """Return CPU time and I/O counters of a process: they change even during a long migration that prints nothing."""
    found: list[str] = []
    if pid is not None:
        with suppress(OSError, IndexError):
            found += Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        with suppress(OSError):
            found.append(Path(f"/proc/{pid}/io").read_text())
    return tuple(found)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
