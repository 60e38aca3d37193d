"""Conversion of batches to calls of `train_one_batch`, and of its return values."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from shoal.core.errors import UsageError

torch: Any = import_module("torch")


class Call(NamedTuple):
    """Arguments of train_one_batch."""

    args: list[Any]
    kwargs: dict[str, Any]


def as_call(batch: Any) -> Call:
    """Return the arguments for a batch: its elements, and a dict at its end as keyword arguments."""
    items = list(batch) if isinstance(batch, list | tuple) else [batch]
    if items and isinstance(items[-1], dict):
        return Call(items[:-1], items[-1])
    return Call(items, {})


def as_result(returned: Any, call: Call) -> dict[str, Any]:
    """Convert a loss (version 4), (loss, batch_num), or {"loss", "batch_num", "figure"} to the format of Shoal's trainer."""
    if isinstance(returned, Mapping) and "loss" in returned:
        loss, count, figures = returned["loss"], returned.get("batch_num"), returned.get("figure") or {}
    elif isinstance(returned, tuple) and len(returned) == 2:
        (loss, count), figures = returned, {}
    elif isinstance(returned, torch.Tensor):
        loss, count, figures = returned, None, {}
    else:
        raise UsageError(
            f"train_one_batch returned a {type(returned).__name__}",
            hint='return {"loss": loss, "batch_num": number, "figure": {…}}, (loss, number), or the loss',
        )
    samples = batch_num(call) if count is None else int(count)
    return {"loss": loss, "samples": samples, "figures": {str(k): float(v) for k, v in figures.items()}}


def batch_num(call: Call) -> int:
    """Return the size of the first tensor among the arguments, then among the keyword arguments."""
    for value in [*call.args, *call.kwargs.values()]:
        if isinstance(value, torch.Tensor) and value.dim():
            return int(value.shape[0])
    raise UsageError("the batch size is unknown: the batch contains no tensor", hint='return "batch_num" with the loss')
