"""Shoal: train PyTorch models on whatever machines you have.

Importing this package costs nothing; public names load on first use.
"""

__version__ = "0.1.0"

_PUBLIC = {
    "Run": "shoal.sdk.run",
    "data": "shoal.data",
    "download_checkpoint": "shoal.client.download",
    "init": "shoal.sdk.start",
    "integrations": "shoal.integrations",
    "skip_trial": "shoal.sdk.trial",
    "sweep": "shoal.tune.sweep",
    "trial_params": "shoal.sdk.trial",
}
"""Public name → its module."""


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(_PUBLIC[name])
    return module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
