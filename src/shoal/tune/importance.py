"""Importance of parameters: how much the values of each differ between good trials and the others (PED-ANOVA, Optuna)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

from shoal.core.sweeps import Params, SweepSpec
from shoal.tune.axes import Box

LEAST = 8
"""Minimum number of results."""


def shares(spec: SweepSpec, results: Sequence[tuple[Params, float]]) -> dict[str, float]:
    """Return parameter → its share of the differences between results, largest first; a group has one common share.

    Empty if there are too few results, or if Optuna is not installed.
    """
    finite = [(params, result) for params, result in results if math.isfinite(result)]
    if len(finite) < LEAST or len({result for _, result in finite}) < 2:
        return {}
    try:
        import optuna

        from shoal.tune.tpe import distribution
    except ImportError:
        return {}
    box = Box(spec.space)
    distributions = {key: distribution(axis) for key, axis in box.axes.items()}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="minimize" if spec.direction == "min" else "maximize")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns about experimental features
        for params, result in finite:
            study.add_trial(
                optuna.trial.create_trial(params=box.place(params), distributions=distributions, value=result)
            )
        found = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
        )
    whole = sum(found.values())
    if not whole > 0:
        return {}
    return {_name(box, key): share / whole for key, share in found.items()}


def _name(box: Box, key: str) -> str:
    axis = box.axes[key]
    return key if not hasattr(axis, "names") else ", ".join(axis.names)
