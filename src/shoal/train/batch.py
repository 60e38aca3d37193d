"""Input and result of train_batch, and its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from shoal.core.errors import UsageError
from shoal.sdk.values import Later

torch: Any = import_module("torch")


class Reading:
    """Loss and figures of a batch as numbers, once they are needed; the copies from a device start at once."""

    def __init__(self, result: Result):
        """Start to copy what is on a device. The numbers are those of this moment, whatever the device does later."""
        self.is_late = _can_wait(result.loss)
        """True if reading waits for the device."""
        self._figures = result.figures
        self._now: tuple[float, Mapping[str, Any]] | None = None
        if self.is_late:
            there = {k: v for k, v in result.figures.items() if isinstance(v, torch.Tensor) and _can_wait(v)}
            # A figure may be called "loss", too.
            self._later = Later([v.detach().reshape(()) for v in (result.loss, *there.values())])
            self._names = list(there)
        else:
            self._now = float(result.loss.detach()), self._figures

    @property
    def loss(self) -> float:
        return self._read()[0]

    @property
    def figures(self) -> Mapping[str, Any]:
        return self._read()[1]

    def _read(self) -> tuple[float, Mapping[str, Any]]:
        if self._now is None:
            loss, *there = self._later.read()
            self._now = loss, {**self._figures, **dict(zip(self._names, there, strict=True))}
        return self._now


class Result(NamedTuple):
    """Checked result of train_batch."""

    loss: Any
    samples: int | None
    figures: Mapping[str, Any]


def read_result(returned: Any) -> Result:
    """Parse the return value of train_batch: a loss, (loss, samples), or a dict of loss, samples and figures."""
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
    """Return a nested structure with all its tensors on the device.

    Args:
        value: A tensor, or dicts, lists and tuples that contain tensors.
        device: The target device.

    Example:
        >>> batch = to_device({"x": x, "labels": labels}, torch.device("cuda"))
    """
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
        kind = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise UsageError(f"the loss of train_batch is {kind}", hint="return one number: the mean over the batch")
    return result


def _can_wait(number: Any) -> bool:
    """Check whether a tensor is on a device and can be copied from there; one that is sharded over workers is read at once."""
    return number.device.type != "cpu" and not hasattr(number, "full_tensor")
