"""Shoal: train PyTorch models on any machines you have.

Importing this package is fast: public names are loaded on first use.
"""

__version__ = "0.1.0"

_PUBLIC = {
    "Run": "shoal.sdk.run",
    "api": "shoal.api",
    "connect": "shoal.api.workspace",
    "data": "shoal.data",
    "download_checkpoint": "shoal.client.download",
    "empty_model": "shoal.sdk.parallel.empty",
    "init": "shoal.sdk.start",
    "integrations": "shoal.integrations",
    "plan": "shoal.sdk.parallel.proposal",
    "read_weights": "shoal.sdk.parallel.empty",
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


def load_ipython_extension(shell: object) -> None:
    """Add the cell magic `%%shoal`; IPython calls this for `%load_ext shoal`."""
    import importlib

    importlib.import_module("shoal.api.magic").load(shell)  # by its name, as layers below must not depend on it


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
