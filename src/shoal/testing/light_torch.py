"""Avoids the import of torch's compiler in the training script of a test, which imports this module first.

The first optimizer imports `torch._dynamo`, which takes two thirds as long as torch itself. In a script that compiles nothing,
the functions that are called have no effect, so stand-ins replace them. Any other attribute imports the real compiler.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

_NAME = "torch._dynamo"


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _same(function: Any, *_: Any, **__: Any) -> Any:
    return function


def _real(name: str) -> Any:
    del sys.modules[_NAME]
    return getattr(importlib.import_module(_NAME), name)


if _NAME not in sys.modules:
    _stand_in = ModuleType(_NAME)
    vars(_stand_in).update(
        disable=_same,
        graph_break=_nothing,
        utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
        trace_rules=SimpleNamespace(clear_lru_cache=_nothing),
        __getattr__=_real,
    )
    sys.modules[_NAME] = _stand_in
    vars(torch)["_dynamo"] = _stand_in
