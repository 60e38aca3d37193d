"""Conversion of scheduler and scaler states to plain types that load with weights_only=True, and back."""

from __future__ import annotations

import numbers
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
_MARK = "__shoal__"


def to_plain(value: Any, left_out: Callable[[str], None], path: str = "") -> Any:
    """Return a nest of plain types and tensors; `left_out` is called with the path of every other value."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, torch.Tensor)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Counter):
        return {_MARK: "counter", "items": list(value.items())}
    if isinstance(value, (set, frozenset)):
        return {_MARK: "set", "items": list(value)}
    if isinstance(value, Mapping):
        kept = {k: to_plain(v, left_out, f"{path}.{k}") for k, v in value.items()}
        return {k: v for k, v in kept.items() if v is not Ellipsis}
    if isinstance(value, (list, tuple)):
        items = [to_plain(v, left_out, f"{path}[{i}]") for i, v in enumerate(value)]
        items = [None if v is Ellipsis else v for v in items]
        return items if isinstance(value, list) else tuple(items)
    left_out(f"{path.lstrip('.')} ({type(value).__name__})")
    return Ellipsis


def from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        if (kind := value.get(_MARK)) is not None:
            items = value["items"]
            return Counter(dict(items)) if kind == "counter" else set(items)
        return {k: from_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(from_plain(v) for v in value)
    return value
