"""Notices about GPUs that a job holds and hardly uses. Pure: fed with gauges and times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.agent.devices.gauges import Gauge

IDLE_PERCENT, IDLE_S = 1.0, 900.0
LOW_PERCENT, LOW_S = 20.0, 3600.0


class UseWatch:
    """Says once per GPU that it is idle, and once that all of them are used little."""

    def __init__(self) -> None:
        self._busy_at: dict[int, float] = {}
        """GPU → when it last computed."""
        self._said: set[int] = set()
        self._sum, self._count = 0.0, 0
        self._since: float | None = None
        self._is_low_said = False

    def notices(self, gauges: Sequence[Gauge], now: float) -> list[str]:
        """Return new notices after a reading. GPUs that do not tell their use (MIG slices) are left out."""
        used = {int(gauge["i"]): float(gauge["util"]) for gauge in gauges if "util" in gauge and "i" in gauge}
        if not used:
            return []
        new_idle: list[int] = []
        for index, percent in sorted(used.items()):
            if percent > IDLE_PERCENT:
                self._said.discard(index)  # if it stops again, that is news
            if percent > IDLE_PERCENT or index not in self._busy_at:
                self._busy_at[index] = now
            elif now - self._busy_at[index] >= IDLE_S and index not in self._said:
                self._said.add(index)
                new_idle.append(index)
        found = [_idle_text(new_idle, len(used))] if new_idle else []
        if (low := self._low(used, now)) is not None:
            found.append(low)
        return found

    def _low(self, used: dict[int, float], now: float) -> str | None:
        """Return a notice if the mean use over a whole period is low but not zero; once."""
        if self._since is None:
            self._since = now
        self._sum, self._count = self._sum + sum(used.values()) / len(used), self._count + 1
        if now - self._since < LOW_S:
            return None
        mean, self._sum, self._count, self._since = self._sum / self._count, 0.0, 0, now
        if self._is_low_said or not IDLE_PERCENT < mean < LOW_PERCENT:
            return None
        self._is_low_said = True
        whose = "GPU was" if len(used) == 1 else f"{len(used)} GPUs were"
        return (
            f"This node's {whose} used {mean:.0f} % of the time in the last {LOW_S / 60:.0f} minutes; "
            "loading data is often the reason"
        )


def _idle_text(idle: Sequence[int], total: int) -> str:
    names = ", ".join(map(str, idle))
    if len(idle) == total > 1:
        which = f"All {total} GPUs of this node have"
    else:
        which = f"GPU {names} has" if len(idle) == 1 else f"GPUs {names} have"
    return f"{which} not been used for {IDLE_S / 60:.0f} minutes"
