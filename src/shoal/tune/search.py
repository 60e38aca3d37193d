"""Choice of the values to try next, from the seed, the trial's number and the results of other trials known by then."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.core.errors import MissingExtra
from shoal.core.sweeps import Params, SweepSpec, TrialState
from shoal.tune.axes import Box, Place
from shoal.tune.curve import Curve
from shoal.tune.prune import Rungs, loss_after
from shoal.tune.space import grid_point

if TYPE_CHECKING:
    from shoal.tune.tpe import Estimator

_SPREAD = 10
"""Number of trials at the beginning that are spread evenly over the space, until as many have a result."""
_GOOD, _MODELLED = 25, 500
"""Numbers of trials for a suggestion: the best ones, and in total with the newest others. They bound the time it takes."""
_DRAWS = 6
"""Number of suggestions to draw until one has not been tried."""
_TO_THE_END = sys.maxsize
_ENDED_WELL = (TrialState.DONE, TrialState.REUSED)
_LAST = (2, 0, 0.0)


@dataclass(slots=True)
class Tried:
    """Trial with its parameter values and its state."""

    number: int
    params: Params
    result: float | None = None
    """Best value of the metric; sufficient if `values` are unknown."""
    values: Sequence[float] = ()
    """All values of the metric so far, in order."""
    state: TrialState = TrialState.DONE


class _Stand(NamedTuple):
    """State of a trial for ranking; smaller values are better."""

    state: TrialState
    shown: list[float]
    """Best value at each rung."""
    best: float

    @property
    def came(self) -> int:
        """Number of rungs the trial has reached."""
        return _TO_THE_END if self.state in _ENDED_WELL else len(self.shown)

    def place(self, level: int) -> tuple[int, int, float]:
        """Return the sort key at a rung. A running trial that has not reached it is last, so that its values are avoided."""
        if self.state in (TrialState.FAILED, TrialState.SKIPPED) or self.best == math.inf:
            return _LAST
        if level <= len(self.shown):
            return (0, 0, self.shown[level - 1])
        if self.state in _ENDED_WELL:
            return (0, 0, self.best)
        return (1, -len(self.shown), self.shown[-1]) if self.shown and self.state is not TrialState.RUNNING else _LAST


class Searcher:
    """Search of one sweep. After a restart, call `tell` for all earlier trials, in any order."""

    def __init__(self, spec: SweepSpec):
        self._spec = spec
        self._box = Box(spec.space)
        self._rungs = Rungs(spec.first_rung, spec.factor)
        self._told: dict[int, _Stand] = {}
        self._taken: set[tuple[Any, ...]] = set()
        self._estimator: Estimator | None = None

    @property
    def count(self) -> int:
        """Maximum number of trials. If all parameters are choices, no combination is repeated."""
        size = self._box.size if self._spec.search != "random" else None
        return min(n for n in (size, self._spec.trials) if n is not None)

    def ask(self, number: int) -> Params | None:
        """Return the values for trial `number`; None if there are no more trials."""
        if number >= self.count:
            return None
        if self._spec.search == "grid":
            return grid_point(self._spec.space, number)
        draws = self._random(number)
        if self._spec.search == "random":
            return self._box.params(self._box.at([draws.random() for _ in self._box.axes]))
        if self._estimator is None and find_spec("optuna") is None:  # not only when it is first used, some trials later
            raise MissingExtra(f"search by {self._spec.search} needs Optuna", hint="pip install 'shoal-train[tune]'")
        return self._box.params(self._untried(number, draws))

    def tell(self, tried: Tried) -> None:
        """Update the state of a trial. Values similar to those of trials that failed or have no result are avoided."""
        if self._spec.search in ("grid", "random"):
            return
        if tried.number not in self._told:
            place = self._box.place(tried.params)
            self._taken.add(self._box.key(place))
            self._get_estimator().keep(tried.number, place)
        self._told[tried.number] = self._stand(tried)

    def _untried(self, number: int, draws: random.Random) -> Place:
        ranked = self._ranked()
        parts = self._spread(number)
        for _ in range(_DRAWS):
            place = self._box.at(parts)
            if ranked:
                place |= self._get_estimator().suggest(ranked, draws.getrandbits(32))
            if self._box.key(place) not in self._taken:
                return place
            parts = [draws.random() for _ in parts]
        return self._box.not_among(self._taken, draws) or place

    def _spread(self, number: int) -> list[float]:
        """Return a point such that of `_SPREAD` consecutive trials, one is in each stripe of every axis."""
        block, at = divmod(number, _SPREAD)
        parts = []
        for axis in range(len(self._box.axes)):
            draws = self._random(f"{block}/{axis}")
            stripes = draws.sample(range(_SPREAD), _SPREAD)
            parts.append((stripes[at] + self._random(f"{number}/{axis}").random()) / _SPREAD)
        return parts

    def _ranked(self) -> list[int]:
        """Return the numbers of the trials to learn from, best first; [] while there are too few results."""
        if sum(told.best < math.inf for told in self._told.values()) < _SPREAD:
            return []
        level = self._level()
        places = {number: told.place(level) for number, told in self._told.items()}
        ranked = sorted(places, key=lambda number: (places[number], number))
        newest = set(sorted(ranked[_GOOD:])[_GOOD - _MODELLED :])
        return ranked[:_GOOD] + [number for number in ranked[_GOOD:] if number in newest]

    def _level(self) -> int:
        """Return the rung at which trials are compared: the last one that enough of them have reached."""
        if self._spec.search == "tpe":
            return _TO_THE_END
        enough = max(len(self._box.axes) + 1, math.ceil(len(self._told) / 10))
        came = sorted(told.came for told in self._told.values())
        return max(1, came[-min(enough, len(came))])

    def _stand(self, tried: Tried) -> _Stand:
        values = tried.values or ([] if tried.result is None else [tried.result])
        curve, direction = Curve.of(values, self._spec.direction), self._spec.direction
        rungs = list(self._rungs.up_to(len(curve))) if self._spec.search != "tpe" else []
        best = loss_after(curve, len(curve), direction) if curve else math.inf
        return _Stand(tried.state, [loss_after(curve, rung, direction) for rung in rungs], best)

    def _random(self, what: int | str) -> random.Random:
        return random.Random(f"{self._spec.seed}/{what}")  # noqa: S311  guards nothing

    def _get_estimator(self) -> Estimator:
        if self._estimator is None:
            from shoal.tune.tpe import Estimator

            self._estimator = Estimator(self._box)
        return self._estimator
