"""The training framework: say what is trained (Params, Model, Trainer); how it is run is a matter of the command line."""

from __future__ import annotations

_PUBLIC = {
    "Model": "shoal.train.model",
    "Outcome": "shoal.train.trainer",
    "Params": "shoal.train.params",
    "Predictor": "shoal.train.predictor",
    "Range": "shoal.train.params",
    "Trainer": "shoal.train.trainer",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
