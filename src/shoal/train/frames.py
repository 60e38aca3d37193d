"""Stack frames of a failure: which one is the user's code, and which of its local variables can be saved."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

torch: Any = import_module("torch")

_OURS = str(Path(__file__).parents[1])
_LIBRARY = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_DEEPEST = 8
_MOST_ITEMS = 10_000
_MOST_BYTES = 256 << 20
_SHOWN = 200


def failing_frame(trace: TracebackType | None) -> tuple[FrameType, int] | None:
    """Return the innermost frame of the user's code and its line; if there is none, the innermost frame."""
    found = innermost = None
    while trace is not None:
        innermost = (trace.tb_frame, trace.tb_lineno)
        if is_users(trace.tb_frame.f_code.co_filename):
            found = innermost
        trace = trace.tb_next
    return found or innermost


def is_users(file: str) -> bool:
    """Check whether a file is the user's: not from Python, an installed package or Shoal."""
    if file.startswith(("<frozen", "<string>")) or "site-packages" in file or "dist-packages" in file:
        return False
    return not file.startswith((_OURS, *_LIBRARY))


def frame_at_return(call: Callable[[], Any]) -> tuple[Any, FrameType | None]:
    """Return the result of `call` and the outermost frame of user code in it, as it was at its end. Slow: for failures only."""
    kept: list[FrameType] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and is_users(frame.f_code.co_filename):
            kept[:] = [frame]

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        returned = call()
    finally:
        sys.setprofile(before)
    return returned, kept[-1] if kept else None


def keepable(variables: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the variables that can be saved (numbers, texts, tensors, containers of them), and why others cannot, by name."""
    budget = _Budget(_MOST_BYTES)
    kept: dict[str, Any] = {}
    left: dict[str, str] = {}
    for name, value in variables.items():
        try:
            kept[name] = _reduced(value, budget, _DEEPEST)
        except _LeftOut as reason:
            left[name] = str(reason)
        except Exception as error:  # a failed device cannot be read
            left[name] = f"cannot be read: {type(error).__name__}"
    return kept, left


def short_texts(variables: Mapping[str, Any]) -> dict[str, str]:
    """Return a short text for each variable."""
    return {name: _words(value) for name, value in variables.items()}


def own_copy(tensor: Any) -> Any:
    """Return a CPU tensor with its own memory: saving a slice would save the whole tensor behind it."""
    tensor = tensor.detach()
    is_part = tensor.layout == torch.strided and tensor.untyped_storage().nbytes() > tensor.nelement() * tensor.itemsize
    return tensor.to("cpu", copy=True) if is_part or tensor.device.type != "cpu" else tensor


class _LeftOut(Exception):
    """The reason why a value is not saved."""


class _Budget:
    def __init__(self, size: int):
        self.left = size

    def spend(self, size: int) -> None:
        if size > self.left:
            raise _LeftOut(f"{size >> 20} MiB is too large")
        self.left -= size


def _reduced(value: Any, budget: _Budget, depth: int) -> Any:
    if isinstance(value, torch.nn.Parameter):
        raise _LeftOut("a parameter of the model")
    if isinstance(value, torch.Tensor):
        budget.spend(value.nelement() * value.itemsize)
        return own_copy(value)
    if type(value) in _PLAIN:
        budget.spend(len(value) if isinstance(value, str | bytes) else 8)
        return value
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        if depth == 0:
            raise _LeftOut("nested too deep")
        if len(value) > _MOST_ITEMS:
            raise _LeftOut(f"{len(value)} items are too many")
        if isinstance(value, Mapping):
            return {_key(k): _reduced(v, budget, depth - 1) for k, v in value.items()}
        items = [_reduced(v, budget, depth - 1) for v in value]
        return items if isinstance(value, list) else set(items) if isinstance(value, set | frozenset) else tuple(items)
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes") and value.dtype.kind in "biufc":
        budget.spend(int(value.nbytes))
        return torch.as_tensor(value).clone()
    raise _LeftOut(f"a {type(value).__qualname__}")


def _key(key: Any) -> Any:
    if type(key) not in _PLAIN:
        raise _LeftOut(f"a mapping by {type(key).__qualname__}")
    return key


def _words(value: Any) -> str:
    try:
        if isinstance(value, torch.Tensor):
            return f"tensor of {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
        if isinstance(value, Mapping | list | tuple | set | frozenset) and len(value) > 20:
            return f"{type(value).__name__} of {len(value)}"
        text = repr(value)
    except Exception as error:
        return f"a {type(value).__qualname__} that cannot be shown: {type(error).__name__}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
