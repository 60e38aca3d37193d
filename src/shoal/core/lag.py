"""A process's own stalls: time in which it could not have heard or said anything, and which therefore counts against nobody.

It ticks several times a second. If a tick is late by more than `TOLERANCE_S` (the process was stopped, the machine was
overloaded, swapping or suspended), the rest of that time is a stall. `awake_s` is a clock that stands still during stalls: the
server's node timeouts and stall detection use it. Agents report the sum of theirs to the server.

One thread ticks and replaces `_state` as a whole, so others read a consistent value without a lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)
TOLERANCE_S = 1.0
"""Seconds between two ticks that are no stall."""
_LOGGED_S = 5.0


class Lag:
    """Measures the stalls of one process. Without ticks there are none: then `awake_s` is the clock itself."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, who: str = "the server"):
        """Set up. `who` is named in the log when there was a stall."""
        self._clock, self._who = clock, who
        self._state: tuple[float | None, float] = (None, 0.0)
        """Time of the last tick, None before the first, and the seconds of all stalls before it."""

    def tick(self) -> None:
        """Record that the event loop works. Call it from one thread only, much more often than every `TOLERANCE_S`."""
        now, (last, stalled_s) = self._clock(), self._state
        late_s = _late_s(now, last)
        self._state = (now, stalled_s + late_s)
        if late_s >= _LOGGED_S:
            logger.warning(
                "%s stood still for %.0f s; this time does not count against agents and jobs", self._who, late_s
            )

    @property
    def stalled_s(self) -> float:
        """Seconds of all stalls that are over."""
        return self._state[1]

    def awake_s(self) -> float:
        """Return the monotonic time without stalls, including one that still lasts."""
        last, stalled_s = self._state  # before the clock is read: a tick in between must not make it run backwards
        now = self._clock()
        return now - stalled_s - _late_s(now, last)


def _late_s(now: float, last: float | None) -> float:
    return 0.0 if last is None else max(0.0, now - last - TOLERANCE_S)
