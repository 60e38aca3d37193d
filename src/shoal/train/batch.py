"""What goes into train_batch and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from shoal.core.errors import UsageError

torch: Any = import_module("torch")


class Result(NamedTuple):
    loss: Any
    samples: int | None
    figures: Mapping[str, Any]


def read_result(returned: Any) -> Result:
    """Of train_batch: a loss, (loss, samples), or a dict of loss, samples and figures."""
    if isinstance(returned, torch.Tensor):
        return _checked(Result(returned, None, {}))
    if isinstance(returned, tuple) and len(returned) == 2:
        return _checked(Result(returned[0], int(returned[1]), {}))
    if isinstance(returned, Mapping) and "loss" in returned:
        samples = returned.get("samples")
        return _checked(
            Result(returned["loss"], None if samples is None else int(samples), returned.get("figures") or {})
        )
    raise UsageError(
        f"train_batch returned a {type(returned).__name__}",
        hint='return the loss, (loss, samples), or {"loss": …, "samples": …, "figures": {…}}',
    )


def to_device(value: Any, device: Any) -> Any:
    """The same nest with its tensors there."""
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        moved = {k: to_device(v, device) for k, v in value.items()}
        return moved if type(value) is dict else type(value)(moved)  # type: ignore[call-arg]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(v, device) for v in value))
    if type(value) in (list, tuple):
        return type(value)(to_device(v, device) for v in value)
    return value


def _checked(result: Result) -> Result:
    loss = result.loss
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        told = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise UsageError(f"the loss of train_batch is {told}", hint="return one number: the mean over the batch")
    return result
