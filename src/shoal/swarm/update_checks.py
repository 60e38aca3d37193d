"""Checks of updates that came from other peers. Pure functions on tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.swarm.averaging.robust import mean, robust
from shoal.swarm.loss_watch import LossWatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LossWatch", "check_update", "check_weight", "clip", "mean", "norm_of", "robust"]

torch: Any = import_module("torch")


def check_update(tensors: Sequence[Tensor], like: Sequence[Tensor]) -> str | None:
    """Return why the tensors cannot be an update of `like`; None if they can."""
    if len(tensors) != len(like):
        return f"it has {len(tensors)} tensors instead of {len(like)}"
    for number, (tensor, own) in enumerate(zip(tensors, like, strict=True)):
        if tensor.shape != own.shape:
            return f"tensor {number} has shape {list(tensor.shape)} instead of {list(own.shape)}"
        if tensor.dtype.is_floating_point != own.dtype.is_floating_point:
            return f"tensor {number} is of type {tensor.dtype} instead of {own.dtype}"
        if not torch.isfinite(tensor).all():
            return f"tensor {number} has values that are not finite"
    return None


def check_weight(weight: float) -> str | None:
    """Return why a weight is invalid; None if it is positive and finite."""
    if not math.isfinite(weight) or weight <= 0.0:
        return f"its weight is {weight}"
    return None


def norm_of(tensors: Sequence[Tensor]) -> float:
    """Return the L2 norm of all tensors together."""
    return math.sqrt(sum(float(tensor.detach().double().norm()) ** 2 for tensor in tensors))


def clip(tensors: Sequence[Tensor], norm: float) -> float:
    """Scale the tensors in place so that their joint norm is at most `norm`; return the norm they had."""
    had = norm_of(tensors)
    if had > norm:
        for tensor in tensors:
            tensor.mul_(norm / had)
    return had
