"""What to try next. Which values a trial gets follows from the seed, its number and the results known when it was asked for."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.core.errors import MissingExtra
from shoal.core.sweeps import Axis, Between, Choice, Params, SweepSpec
from shoal.tune.space import grid_point, grid_size

if TYPE_CHECKING:
    from optuna import Study

_GROUP = "\0group/"


@dataclass(slots=True)
class Tried:
    """A trial that was given its values; `result` once it has one."""

    number: int
    params: Params
    result: float | None = None


class Searcher:
    """Of one sweep. `tell` it all trials of before to go on after a restart."""

    def __init__(self, spec: SweepSpec):
        self._spec = spec
        self._study: Study | None = None
        self._axes = _joined(spec.space)

    @property
    def count(self) -> int:
        """Trials there will be at most."""
        if self._spec.search != "grid":
            return self._spec.trials or 0
        size = grid_size(self._spec.space)
        return size if self._spec.trials is None else min(size, self._spec.trials)

    def ask(self, number: int) -> Params | None:
        """Values for trial `number`; None when there are no more."""
        if number >= self.count:
            return None
        if self._spec.search == "grid":
            return grid_point(self._spec.space, number)
        if self._spec.search == "random":
            drawn = random.Random(f"{self._spec.seed}/{number}")  # noqa: S311  guards nothing
            return self._apart({name: _drawn(axis, drawn) for name, axis in self._axes.items()})
        return self._suggested(number)

    def tell(self, tried: Tried) -> None:
        """A result, or with None that the trial failed: its values are not suggested for being unknown."""
        if self._spec.search in ("grid", "random"):
            return
        optuna = _optuna()
        state = optuna.trial.TrialState.FAIL
        value = None
        if tried.result is not None and math.isfinite(tried.result):
            state, value = optuna.trial.TrialState.COMPLETE, tried.result
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._get_study().add_trial(
                optuna.trial.create_trial(
                    state=state, value=value, params=self._together(tried.params), distributions=self._distributions()
                )
            )

    def _suggested(self, number: int) -> Params:
        optuna, study = _optuna(), self._get_study()
        study.sampler = optuna.samplers.TPESampler(
            seed=(self._spec.seed * 1_000_003 + number) % 2**32, multivariate=False
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asked = study.ask(self._distributions())
        found = dict(asked.params)
        study.tell(asked, state=optuna.trial.TrialState.FAIL)  # the answer comes by `tell`, maybe after a restart
        return self._apart({name: found[name] for name in self._axes})

    def _get_study(self) -> Study:
        if self._study is None:
            optuna = _optuna()
            optuna.logging.set_verbosity(optuna.logging.ERROR)
            direction = "minimize" if self._spec.direction == "min" else "maximize"
            self._study = optuna.create_study(direction=direction)
        return self._study

    def _distributions(self) -> dict[str, Any]:
        return {name: _distribution(axis) for name, axis in self._axes.items()}

    def _apart(self, found: Params) -> Params:
        """From indices of choices and of groups to the values of each parameter."""
        values: Params = {}
        for name, value in found.items():
            if name.startswith(_GROUP):
                group = name.removeprefix(_GROUP)
                for member, axis in self._spec.space.items():
                    if isinstance(axis, Choice) and axis.group == group:
                        values[member] = axis.values[value]
            else:
                axis = self._axes[name]
                values[name] = axis.values[value] if isinstance(axis, Choice) else _rounded(axis, value)
        return {name: values[name] for name in self._spec.space}

    def _together(self, params: Params) -> Params:
        found: Params = {}
        for name, axis in self._axes.items():
            if name.startswith(_GROUP):
                group = name.removeprefix(_GROUP)
                members = {n: a for n, a in self._spec.space.items() if isinstance(a, Choice) and a.group == group}
                rows = range(len(axis.values)) if isinstance(axis, Choice) else range(0)
                found[name] = next(i for i in rows if all(a.values[i] == params[n] for n, a in members.items()))
            else:
                found[name] = axis.values.index(params[name]) if isinstance(axis, Choice) else params[name]
        return found


def _joined(space: Mapping[str, Axis]) -> dict[str, Axis]:
    """Groups become one parameter: the number of their row."""
    axes: dict[str, Axis] = {}
    for name, axis in space.items():
        if isinstance(axis, Choice) and axis.group is not None:
            axes[_GROUP + axis.group] = Choice(values=list(range(len(axis.values))))
        else:
            axes[name] = axis
    return axes


def _distribution(axis: Axis) -> Any:
    """Choices by their number: Optuna takes no lists as values."""
    distributions = _optuna().distributions
    if isinstance(axis, Choice):
        return distributions.CategoricalDistribution(list(range(len(axis.values))))
    if axis.whole:
        return distributions.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return distributions.FloatDistribution(axis.low, axis.high, log=axis.log)


def _drawn(axis: Axis, drawn: random.Random) -> Any:
    if isinstance(axis, Choice):
        return drawn.randrange(len(axis.values))
    if axis.log:
        high = axis.high + 1 if axis.whole else axis.high
        found = math.exp(drawn.uniform(math.log(axis.low), math.log(high)))
        return min(int(found), int(axis.high)) if axis.whole else min(max(found, axis.low), axis.high)
    return drawn.randint(int(axis.low), int(axis.high)) if axis.whole else drawn.uniform(axis.low, axis.high)


def _rounded(axis: Between, value: float) -> float | int:
    return int(value) if axis.whole else value


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingExtra(
            "search by tpe, asha and hyperband needs Optuna", hint="pip install 'shoal[tune]'"
        ) from error
    return optuna
