"""Distances between two outputs of a model, always computed in 32 bits."""

from __future__ import annotations

from importlib import import_module
from typing import Any

torch: Any = import_module("torch")


def kl(target: Any, logits: Any, mask: Any = None) -> Any:
    """Return KL(target ‖ logits), both given as logits over the last dimension; the mean over samples where `mask` is true."""
    wanted = torch.log_softmax(target.float(), dim=-1)
    found = torch.log_softmax(logits.float(), dim=-1)
    return mean((wanted.exp() * (wanted - found)).sum(-1), mask)


def symmetric_kl(one: Any, other: Any, mask: Any = None) -> Any:
    """Return the sum of the KL divergences in both directions."""
    return kl(one, other, mask) + kl(other, one, mask)


def squared(one: Any, other: Any, mask: Any = None) -> Any:
    """Return the mean squared distance of numeric outputs; several numbers of a sample are averaged first."""
    apart = (one.float() - other.float()).pow(2)
    return mean(apart.flatten(1).mean(1) if apart.dim() > 1 else apart, mask)


def mean(values: Any, mask: Any = None) -> Any:
    """Return the mean of the values where `mask` is true."""
    if mask is None:
        return values.mean()
    weights = mask.to(values.dtype)
    return (values * weights).sum() / weights.sum().clamp(min=1)


def norms(values: Any) -> Any:
    """Return the L2 norm of each sample, shaped for broadcasting."""
    return values.flatten(1).norm(dim=1).view(-1, *[1] * (values.dim() - 1))
