"""The server's clock: time of day that follows elapsed time, whatever happens to the system clock.

It starts at the time of day and then follows the kernel's clock since boot, which nobody can set and which also counts while
the machine is suspended. So a job's time limit, a lease and a key last as long as they should when the system clock is set an
hour ahead or a day back. Slow corrections (NTP) are followed, at most half a millisecond a second. A stored reading continues
it after a restart of the server; after a reboot it starts at the time of day, but never before the stored reading.

One thread calls `step`; any thread may read. `_offset_s` is replaced as a whole, so a reader sees the old or the new value.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from shoal.core.boot import boot_id

JUMP_S = 1.0
"""Change of the system clock between two steps, in seconds, from which it counts as a jump and not as drift."""
_SLEW = 0.0005
"""Seconds per second by which drift is followed."""


def since_boot_s() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _time_of_day_s() -> float:
    return time.time()  # looked up on each call, so that a test can replace it


class Reading(NamedTuple):
    """A reading of the clock, to continue it later."""

    boot: str
    boot_s: float
    at_s: float


class SteadyClock:
    """Clock that counts elapsed time from a time of day."""

    def __init__(
        self,
        *,
        wall_s: Callable[[], float] = _time_of_day_s,
        boot_s: Callable[[], float] = since_boot_s,
        boot: str | None = None,
    ):
        self._wall_s, self._boot_s, self._boot = wall_s, boot_s, boot or boot_id()
        self._offset_s = 0.0
        self._stepped_at = self._known_gap_s = 0.0
        self.set_by_wall()

    def now_s(self) -> float:
        """Return the time in seconds since 1970."""
        return self._boot_s() + self._offset_s

    @property
    def gap_s(self) -> float:
        """Seconds by which the system clock is ahead of this one; negative if it is behind."""
        return self._wall_s() - self.now_s()

    def reading(self) -> Reading:
        boot_s = self._boot_s()
        return Reading(self._boot, boot_s, boot_s + self._offset_s)

    def resume(self, known: Reading) -> None:
        """Continue from a stored reading. Time passes while the server or the machine is off."""
        boot_s = self._boot_s()
        if known.boot == self._boot and known.boot_s <= boot_s:
            self._offset_s = known.at_s - known.boot_s
        else:
            self._offset_s = max(self._wall_s(), known.at_s) - boot_s
        self._stepped_at, self._known_gap_s = boot_s, 0.0

    def set_by_wall(self) -> None:
        """Set the clock to the time of day. Allowed only while nothing is measured with it."""
        boot_s = self._boot_s()
        self._offset_s = self._wall_s() - boot_s
        self._stepped_at, self._known_gap_s = boot_s, 0.0

    def step(self) -> float | None:
        """Follow the drift of the system clock; return the seconds by which it has jumped since the last step, or None."""
        boot_s, gap_s = self._boot_s(), self.gap_s
        elapsed_s, changed_s = max(0.0, boot_s - self._stepped_at), gap_s - self._known_gap_s
        jumped = abs(changed_s) > JUMP_S + 2 * _SLEW * elapsed_s
        most_s = _SLEW * elapsed_s
        slew_s = 0.0 if jumped else max(-most_s, min(most_s, gap_s))
        self._offset_s += slew_s
        self._stepped_at, self._known_gap_s = boot_s, gap_s - slew_s
        return changed_s if jumped else None
