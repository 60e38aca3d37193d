"""How a batch is handed to `train_one_batch`, and what that returns."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from shoal.core.errors import UsageError

torch: Any = import_module("torch")


class Call(NamedTuple):
    args: list[Any]
    kwargs: dict[str, Any]


def as_call(batch: Any) -> Call:
    """The elements of a batch are arguments; a dict at its end is keyword arguments."""
    items = list(batch) if isinstance(batch, list | tuple) else [batch]
    if items and isinstance(items[-1], dict):
        return Call(items[:-1], items[-1])
    return Call(items, {})


def as_result(returned: Any, call: Call) -> dict[str, Any]:
    """A loss (version 4), (loss, batch_num), or {"loss", "batch_num", "figure"}: as shoal's trainer takes it."""
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
    """Size of the first tensor among the arguments, then among the keyword arguments."""
    for value in [*call.args, *call.kwargs.values()]:
        if isinstance(value, torch.Tensor) and value.dim():
            return int(value.shape[0])
    raise UsageError(
        "how many samples the batch has cannot be told: it holds no tensor", hint='return "batch_num" with the loss'
    )
