"""Early ending of trials: asynchronous successive halving (ASHA), and Hyperband with several brackets of it.

Pure: decisions depend only on the reports of all trials, so they are the same after a restart.
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
    """Numbers of reports at which trials are compared: `first`, `first × factor`, and so on."""

    first: int
    factor: int

    def up_to(self, reports: int) -> Iterator[int]:
        rung = self.first
        while rung <= reports:
            yield rung
            rung *= self.factor


class Loss(NamedTuple):
    """Reason to end a trial: its best value after `reports` reports, and the value it needed to continue."""

    reports: int
    best: float
    needed: float


class RungResults:
    """Results of the trials of one sweep at each rung. Decisions are fast, however many trials there are."""

    def __init__(self, rungs: Rungs, direction: Direction, brackets: int = 1):
        self._rungs, self._direction, self._brackets = rungs, direction, brackets
        self._there: dict[tuple[int, int], list[float]] = {}
        """Bracket and rung → best values of the trials that reached it, best first; smaller is better."""
        self._passed: dict[int, dict[int, float]] = {}
        """Trial → rung → its best value there."""

    def add(self, trial: int, curve: Curve) -> None:
        """Add the reports of a trial. `curve` has all of them; those already known are skipped."""
        bracket, passed = bracket_of(trial, self._brackets), self._passed.setdefault(trial, {})
        rungs = self._rungs._replace(first=self._rungs.first * self._rungs.factor**bracket)
        for rung in rungs.up_to(len(curve)):
            if rung not in passed:
                passed[rung] = best = loss_after(curve, rung, self._direction)
                insort(self._there.setdefault((bracket, rung), []), best)

    def forget(self, trial: int) -> None:
        """Remove a trial that is run again from the beginning."""
        bracket = bracket_of(trial, self._brackets)
        for rung, best in self._passed.pop(trial, {}).items():
            there = self._there[bracket, rung]
            there.pop(bisect_left(there, best))

    def loss(self, trial: int) -> Loss | None:
        """Return why a trial should be ended, or None.

        A trial is ended when it is outside the best 1/factor of the trials at two rungs in a row; one is not enough, because
        many good trials start slowly. With several brackets (Hyperband), trials are compared within their bracket only, and
        later brackets have later rungs, so that slow starters have a chance there.
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
    """Return the best value after a number of reports, as a number of which smaller is better; infinity for NaN."""
    best = curve[reports - 1]
    return math.inf if math.isnan(best) else best if direction == "min" else -best


def bracket_of(trial: int, brackets: int) -> int:
    """Return the bracket of a trial. Earlier brackets get more trials (1/2, 1/4, …), because they need fewer reports."""
    bracket = 0
    while bracket < brackets - 1 and trial & (1 << bracket):
        bracket += 1
    return bracket
