"""The training framework: say what is trained (Params, Model, Trainer); how it is run is a matter of the command line."""

from __future__ import annotations

_PUBLIC = {
    "Params": "shoal.train.params",
    "Range": "shoal.train.params",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
