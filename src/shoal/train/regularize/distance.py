"""How far two outputs of a model are apart, in 32 bits whatever the precision around."""

from __future__ import annotations

from importlib import import_module
from typing import Any

torch: Any = import_module("torch")


def kl(target: Any, logits: Any, mask: Any = None) -> Any:
    """KL(target ‖ logits), both as logits over the last dimension; mean over samples, or over those where `mask` is true."""
    wanted = torch.log_softmax(target.float(), dim=-1)
    found = torch.log_softmax(logits.float(), dim=-1)
    return mean((wanted.exp() * (wanted - found)).sum(-1), mask)


def symmetric_kl(one: Any, other: Any, mask: Any = None) -> Any:
    """KL one way plus KL the other way."""
    return kl(one, other, mask) + kl(other, one, mask)


def squared(one: Any, other: Any, mask: Any = None) -> Any:
    """Of outputs that are numbers, not classes: one per sample, or several of which the mean is taken."""
    apart = (one.float() - other.float()).pow(2)
    return mean(apart.flatten(1).mean(1) if apart.dim() > 1 else apart, mask)


def mean(values: Any, mask: Any = None) -> Any:
    if mask is None:
        return values.mean()
    weights = mask.to(values.dtype)
    return (values * weights).sum() / weights.sum().clamp(min=1)


def norms(values: Any) -> Any:
    """L2 norm of each sample, to multiply and divide with."""
    return values.flatten(1).norm(dim=1).view(-1, *[1] * (values.dim() - 1))
