"""Identify the caller: the user's code sees CUDA; libraries do not, because they would use devices that do not exist."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep  # noqa: PTH100, PTH120
_SHOAL = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # noqa: PTH120
_ROOTS = tuple(
    {
        os.path.realpath(sysconfig.get_path(name)) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if sysconfig.get_path(name)
    }
    | {_SHOAL + os.sep}
)
_FOLDERS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_SEES_CUDA = os.path.join("torch", "distributed", "run.py")  # noqa: PTH118
"""Library file that sees CUDA too: `torchrun --nproc-per-node=gpu` counts devices for the user."""
_known: dict[str, bool] = {}


def is_called_by_user() -> bool:
    """Check whether the first function up the stack that is not ours belongs to the user."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    file = frame.f_code.co_filename if frame else ""
    if file not in _known:
        _known[file] = _is_users(file)
    return _known[file]


def for_user(value: Any, others: Any) -> Any:
    """Return a function that returns `value` to the user's code and the result of `others` to libraries."""

    def answer(*args: Any, **kwargs: Any) -> Any:
        if is_called_by_user():
            return value() if callable(value) else value
        return others(*args, **kwargs) if callable(others) else others

    return answer


def _is_users(file: str) -> bool:
    if file.endswith(_SEES_CUDA):
        return True
    if file.startswith("<frozen"):
        return False
    real = os.path.realpath(file)
    return not any(folder in real for folder in _FOLDERS) and not real.startswith(_ROOTS)
