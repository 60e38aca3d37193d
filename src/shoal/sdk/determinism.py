"""Switch for deterministic training: the settings of torch without which two runs on a GPU may differ in the last bits."""

from __future__ import annotations

import importlib.util
import logging
import os
from importlib import import_module
from typing import Any

logger = logging.getLogger(__name__)

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_WORKSPACES = (":4096:8", ":16:8")
"""The values of WORKSPACE with which cuBLAS is deterministic; the first is the faster one."""


def make_deterministic() -> None:
    """Let this process use deterministic algorithms only. An operator without one raises a RuntimeError that names it."""
    if importlib.util.find_spec("torch") is None:
        return
    torch: Any = import_module("torch")
    given = os.environ.get(WORKSPACE)
    if given not in _WORKSPACES:
        if torch.cuda.is_initialized():
            logger.warning(
                "shoal: CUDA was used before shoal.init(deterministic=True), so matrix products may not be deterministic. "
                "Call shoal.init first, or set %s=%s in the environment.",
                WORKSPACE,
                _WORKSPACES[0],
            )
        os.environ[WORKSPACE] = _WORKSPACES[0]
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def is_deterministic() -> bool:
    """Check whether torch is set to refuse operators that are not deterministic, by `make_deterministic` or by the script."""
    torch: Any = import_module("torch")
    strict = torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    # On a GPU, torch itself refuses matrix products without the workspace setting.
    return bool(strict and not torch.backends.cudnn.benchmark)
