"""Virtual adversarial training (Miyato et al., 2018): the output should not move in the direction in which it moves most."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from shoal.train.regularize.distance import kl, norms

torch: Any = import_module("torch")

_TINY = 1e-12


def vat_loss(
    forward: Callable[[Any], Any],
    inputs: Any,
    logits: Any,
    *,
    epsilon: float = 2.0,
    xi: float = 1e-3,
    iterations: int = 1,
    mask: Any = None,
) -> Any:
    """KL of the output at the inputs from that at the inputs moved by `epsilon` in the worst direction.

    forward     gives logits from inputs; for text the inputs are embeddings
    logits      its output at `inputs`; taken as it is, no gradient flows into it
    epsilon     L2 norm of each sample's move
    xi          step of the finite difference that finds the direction
    iterations  of the power method; one will usually do
    mask        which outputs count (all but padding)
    """
    clean = logits.detach()
    move = worst_direction(forward, inputs, clean, xi=xi, iterations=iterations, mask=mask) * epsilon
    return kl(clean, forward(inputs + move), mask)


def worst_direction(
    forward: Callable[[Any], Any], inputs: Any, clean: Any, *, xi: float = 1e-3, iterations: int = 1, mask: Any = None
) -> Any:
    """For each sample a move of norm 1 along which the output changes most."""
    start = inputs.detach()
    direction = _unit(torch.randn_like(start))
    for _ in range(iterations):
        move = (direction * xi).requires_grad_()
        with torch.enable_grad():
            distance = kl(clean, forward(start + move), mask)
            found = torch.autograd.grad(distance, move)[0].detach()
        # Where the output does not move at all, any direction is as bad.
        direction = torch.where(norms(found) > 0, _unit(found), direction)
    return direction


def _unit(values: Any) -> Any:
    # By the largest entry first: gradients of a KL near its minimum are so small that their squares vanish.
    scaled = values / values.abs().flatten(1).amax(1).clamp(min=_TINY**2).view(-1, *[1] * (values.dim() - 1))
    return scaled / norms(scaled).clamp(min=_TINY)
