"""What scripts take from here, with `from palframe.pytorch import *`; starters do without torch, so it is loaded when asked for."""

import importlib as _importlib
from importlib.util import find_spec as _find_spec

import palframe as _palframe
from palframe import *  # noqa: F403

_LATER = {
    "torch": "torch",
    "dist": "torch.distributed",
    "nn": "torch.nn",
    "nlp": "palframe.nlp",
    "nlp_torch": "palframe.pytorch.nlp_torch",
}
_NAMES = {
    "Logger": "palframe.nlp",
    "Timer": "palframe.nlp",
    **({"SummaryWriter": "torch.utils.tensorboard"} if _find_spec("tensorboard") else {}),
}
__all__ = [*_LATER, *_NAMES, *(name for name in vars(_palframe) if not name.startswith("_"))]


def __getattr__(name: str) -> object:
    if name in _LATER:
        return _importlib.import_module(_LATER[name])
    if name in _NAMES:
        return getattr(_importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
