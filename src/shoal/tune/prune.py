"""Which trials are not worth going on with: successive halving without waiting for anyone (ASHA), and Hyperband's several kinds of it.

Pure: the answer follows from what all trials have reported, so it is the same after a restart.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple

from shoal.core.sweeps import Direction
from shoal.tune.curve import Curve

_RUNGS_TO_LOSE = 2


class Rungs(NamedTuple):
    """A trial is compared when it has reported `first` times, `first × factor` times, and so on."""

    first: int
    factor: int

    def up_to(self, reports: int) -> Iterator[int]:
        rung = self.first
        while rung <= reports:
            yield rung
            rung *= self.factor


class Loss(NamedTuple):
    """Why a trial is not worth going on with: the best it had shown by then, and what it would have taken."""

    reports: int
    best: float
    needed: float


class Board:
    """What the trials of one sweep have shown at each rung. Looking costs little, however many trials there are."""

    def __init__(self, rungs: Rungs, direction: Direction, brackets: int = 1):
        self._rungs, self._direction, self._brackets = rungs, direction, brackets
        self._there: dict[tuple[int, int], list[float]] = {}
        """Bracket and rung → what those that came there had shown, best first; smaller is better."""
        self._passed: dict[int, dict[int, float]] = {}
        """Trial → rung → what it had shown there."""

    def tell(self, trial: int, curve: Curve) -> None:
        """All it has reported so far: what is known already is passed over."""
        bracket, passed = bracket_of(trial, self._brackets), self._passed.setdefault(trial, {})
        rungs = self._rungs._replace(first=self._rungs.first * self._rungs.factor**bracket)
        for rung in rungs.up_to(len(curve)):
            if rung not in passed:
                passed[rung] = best = loss_after(curve, rung, self._direction)
                insort(self._there.setdefault((bracket, rung), []), best)

    def forget(self, trial: int) -> None:
        """It is run again from the beginning."""
        bracket = bracket_of(trial, self._brackets)
        for rung, best in self._passed.pop(trial, {}).items():
            there = self._there[bracket, rung]
            there.pop(bisect_left(there, best))

    def loss(self, trial: int) -> Loss | None:
        """A trial is lost when it is outside the best 1/factor of those that came there at two rungs in a row.

        Not at one: many that end well begin slowly. With several brackets (Hyperband) trials are compared only with those of
        their own, and those of later ones at later rungs: what looks bad for longer has a chance there.
        """
        last = list(self._passed.get(trial, {}).items())[-_RUNGS_TO_LOSE:]
        if len(last) < _RUNGS_TO_LOSE or not all(best > self._needed(trial, rung) for rung, best in last):
            return None
        rung, best = last[-1]
        sign = 1.0 if self._direction == "min" else -1.0
        return Loss(rung, sign * best, sign * self._needed(trial, rung))

    def _needed(self, trial: int, rung: int) -> float:
        there = self._there[bracket_of(trial, self._brackets), rung]
        return there[math.ceil(len(there) / self._rungs.factor) - 1]


def loss_after(curve: Curve, reports: int, direction: Direction) -> float:
    """The best it had shown by then, as a number of which smaller is better; what is not a number is worst."""
    best = curve[reports - 1]
    return math.inf if math.isnan(best) else best if direction == "min" else -best


def bracket_of(trial: int, brackets: int) -> int:
    """Earlier brackets get more trials, as they need fewer reports each: 1/2, 1/4, … of them."""
    bracket = 0
    while bracket < brackets - 1 and trial & (1 << bracket):
        bracket += 1
    return bracket
