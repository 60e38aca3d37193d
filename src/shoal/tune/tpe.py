"""Optuna's TPE estimator on trials that are stored here: nothing is copied into a study, and their order is fixed."""

from __future__ import annotations

import warnings
from collections.abc import Container, Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from shoal.core.sweeps import Between
from shoal.tune.axes import Box, Choices, Place


class Estimator:
    """TPE estimator of one sweep. Trials are stored once; only their ranks change."""

    def __init__(self, box: Box):
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = {key: distribution(axis) for key, axis in box.axes.items()}
        self._varying = {key: found for key, found in self._space.items() if not found.single()}
        self._known: dict[int, FrozenTrial] = {}

    def keep(self, number: int, place: Place) -> None:
        self._known[number] = FrozenTrial(
            number=number,
            trial_id=number,
            state=TrialState.COMPLETE,
            value=0.0,
            datetime_start=None,
            datetime_complete=None,
            params=dict(place),
            distributions=self._space,
            user_attrs={},
            system_attrs={},
            intermediate_values={},
        )

    def suggest(self, ranked: Sequence[int], seed: int) -> Place:
        """Suggest values that are more likely among the best trials than among the others.

        `ranked` has the numbers of the trials, best first.
        """
        for rank, number in enumerate(ranked):
            self._known[number].value = float(rank)
        study = optuna.create_study(storage=_Kept([self._known[n] for n in sorted(ranked)]), sampler=RandomSampler())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna warns about experimental features
            sampler = TPESampler(seed=seed, n_startup_trials=0, multivariate=True, constant_liar=False)
        return sampler.sample_relative(study, self._known[ranked[0]], self._varying)


class _Kept(InMemoryStorage):
    """Storage of a study that contains these trials, in the order of their numbers."""

    def __init__(self, trials: list[FrozenTrial]):
        super().__init__()
        self._trials = trials

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return self._trials


def distribution(axis: Choices | Between) -> BaseDistribution:
    if isinstance(axis, Choices):
        last = len(axis.rows) - 1
        return IntDistribution(0, last) if axis.is_ordered else CategoricalDistribution(list(range(last + 1)))
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)
