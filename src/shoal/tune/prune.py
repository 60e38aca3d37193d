"""Which trials are not worth going on with: successive halving without waiting for anyone (ASHA), and Hyperband's several kinds of it.

Pure: the answer follows from what all trials have reported, so it is the same after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shoal.core.sweeps import Direction


class Rungs(NamedTuple):
    """A trial is compared when it has reported `first` times, `first × factor` times, and so on."""

    first: int
    factor: int

    def up_to(self, reports: int) -> Iterator[int]:
        rung = self.first
        while rung <= reports:
            yield rung
            rung *= self.factor


def is_lost(
    trial: int, reports: Mapping[int, Sequence[float]], rungs: Rungs, direction: Direction, brackets: int = 1
) -> bool:
    """Whether a trial has fallen behind at some rung it came to. `reports`: trial → its values of the metric, in order.

    At a rung a trial goes on if it is among the best 1/factor of those that came there; the first ones there always are. With
    several brackets (Hyperband) trials are compared only with those of their own, and those of later ones at later rungs: what
    looks bad at first has a chance there.
    """
    own = bracket_of(trial, brackets)
    rungs = rungs._replace(first=rungs.first * rungs.factor**own)
    peers = [values for number, values in reports.items() if bracket_of(number, brackets) == own]
    mine = reports.get(trial, ())
    for rung in rungs.up_to(len(mine)):
        there = sorted(_best(values[:rung], direction) for values in peers if len(values) >= rung)
        allowed = max(1, len(there) // rungs.factor)
        if _best(mine[:rung], direction) > there[allowed - 1]:
            return True
    return False


def bracket_of(trial: int, brackets: int) -> int:
    """Earlier brackets get more trials, as they need fewer reports each: 1/2, 1/4, … of them."""
    bracket = 0
    while bracket < brackets - 1 and trial & (1 << bracket):
        bracket += 1
    return bracket


def _best(values: Sequence[float], direction: Direction) -> float:
    """So far, as a number of which smaller is better; what is not a number is worst."""
    good = [v if direction == "min" else -v for v in values if v == v]
    return min(good, default=float("inf"))
