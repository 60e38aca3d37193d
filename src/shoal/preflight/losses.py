"""Checks of the arguments of loss functions and embeddings: labels, token ids, shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .probe import Probe

_REGRESSIONS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_LOOKED_AT = 8
"""Number of calls of each function that are checked; later calls are similar."""


def install(torch: Any, probe: Probe) -> None:
    functional = torch.nn.functional
    checks: dict[str, Callable[..., None]] = {"cross_entropy": _cross_entropy, "nll_loss": _nll_loss}
    checks |= {"embedding": _embedding} | dict.fromkeys(_REGRESSIONS, _regression)
    for name, check in checks.items():
        setattr(functional, name, _checked(torch, probe, getattr(functional, name), check))


def is_finite(torch: Any, tensor: Any) -> bool:
    """Check whether all values of a tensor are finite; True for anything but floating-point and complex tensors."""
    if not isinstance(tensor, torch.Tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    try:
        return bool(torch.isfinite(tensor.detach()).all())
    except (RuntimeError, NotImplementedError):  # sparse, meta, quantized
        return True


def _checked(torch: Any, probe: Probe, original: Any, check: Callable[..., None]) -> Any:
    calls = 0

    def function(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        if calls < _LOOKED_AT and probe.is_here and not torch.compiler.is_compiling():
            calls += 1
            with torch.no_grad():
                try:
                    check(torch, probe, *args, **kwargs)
                except (RuntimeError, TypeError, IndexError, AttributeError):
                    pass  # unusual arguments: torch itself reports errors in them
        return original(*args, **kwargs)

    function.__name__, function.__doc__ = original.__name__, original.__doc__
    function.__wrapped__ = original  # type: ignore[attr-defined]
    return function


def _cross_entropy(
    torch: Any, probe: Probe, input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100, *_: Any, **__: Any
) -> None:  # fmt: skip
    classes = input.shape[1] if input.dim() > 1 else input.shape[0]
    if not target.is_floating_point():
        _labels(probe, target, classes, ignore_index)
    sums, scores = input.sum(1 if input.dim() > 1 else 0), input
    if classes > 1 and bool((scores >= 0).all()) and float((sums - 1).abs().max()) < 1e-3:
        probe.find("softmax-twice", "cross_entropy gets probabilities instead of logits.", where=probe.here())


def _nll_loss(
    torch: Any, probe: Probe, input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100, *_: Any, **__: Any
) -> None:  # fmt: skip
    _labels(probe, target, input.shape[1] if input.dim() > 1 else input.shape[0], ignore_index)


def _labels(probe: Probe, target: Any, classes: int, ignored: int) -> None:
    counted = target[target != ignored]
    if not counted.numel():
        return
    low, high = int(counted.min()), int(counted.max())
    if low < 0 or high >= classes:
        told = f"Labels range from {low} to {high}, but there are {classes} classes (0 to {classes - 1})."
        probe.find("labels", told, where=probe.here())


def _embedding(torch: Any, probe: Probe, input: Any, weight: Any, *_: Any, **__: Any) -> None:
    if not input.numel():
        return
    low, high, rows = int(input.min()), int(input.max()), weight.shape[0]
    if low < 0 or high >= rows:
        told = f"Token ids range from {low} to {high}, but the embedding has {rows} rows (0 to {rows - 1})."
        probe.find("token-ids", told, where=probe.here())


def _regression(torch: Any, probe: Probe, input: Any, target: Any, *_: Any, **__: Any) -> None:
    if input.shape == target.shape or target.numel() == 1 or input.numel() == 1:
        return
    made = torch.broadcast_shapes(input.shape, target.shape)
    told = f"The prediction's shape is {list(input.shape)} and the target's {list(target.shape)}"
    if made.numel() > max(input.numel(), target.numel()):
        told += f": they are broadcast to {list(made)}, so each value is compared with every other"
    probe.find("shapes", f"{told}.", where=probe.here())
