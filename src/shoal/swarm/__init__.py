"""Training of one model by machines that may join and leave at any time.

hivemind transports the data; Shoal decides when to average, with whom, and which state is the swarm's. Importing this
package is cheap: torch and hivemind are loaded when the first name is used. The public names are `Optimizer` and `Settings`.
"""

_PUBLIC = {"Optimizer": "shoal.swarm.optimizer", "Settings": "shoal.swarm.settings"}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
