"""What a peer looks at before it believes numbers that came from elsewhere. Pure functions on tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.swarm.loss_watch import LossWatch
from shoal.swarm.robust import mean, robust

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LossWatch", "check_update", "check_weight", "clip", "mean", "norm_of", "robust"]

torch: Any = import_module("torch")


def check_update(tensors: Sequence[Tensor], like: Sequence[Tensor]) -> str | None:
    """Why these cannot be an update of `like`; None where they can."""
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
    if not math.isfinite(weight) or weight <= 0.0:
        return f"its weight is {weight}"
    return None


def norm_of(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.detach().double().norm()) ** 2 for tensor in tensors))


def clip(tensors: Sequence[Tensor], norm: float) -> float:
    """Scale them in place to at most this norm together; the norm they had."""
    had = norm_of(tensors)
    if had > norm:
        for tensor in tensors:
            tensor.mul_(norm / had)
    return had
