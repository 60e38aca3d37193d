"""Training one model together with machines that come and go: hivemind carries, Shoal decides.

Runs beside training only. Importing this costs nothing; torch and hivemind load with the first name used.
"""

_PUBLIC = {"Optimizer": "shoal.swarm.optimizer", "Settings": "shoal.swarm.settings"}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
