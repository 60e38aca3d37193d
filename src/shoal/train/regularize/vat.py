"""Virtual adversarial training (Miyato et al., 2018): the output should be stable in its most sensitive direction."""

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
    """Return the KL divergence between the output at the inputs and at inputs perturbed in the worst direction.

    Args:
        forward: Returns logits for inputs; for text the inputs are embeddings.
        inputs: Inputs of the batch.
        logits: Output of `forward` at `inputs`. No gradient flows into it.
        epsilon: L2 norm of each sample's perturbation.
        xi: Step of the finite difference that finds the direction.
        iterations: Iterations of the power method; one is usually enough.
        mask: True for the outputs that count (all except padding).

    Example:
        >>> loss = cross_entropy(logits, labels) + vat_loss(model, inputs, logits)
    """
    clean = logits.detach()
    move = worst_direction(forward, inputs, clean, xi=xi, iterations=iterations, mask=mask) * epsilon
    return kl(clean, forward(inputs + move), mask)


def worst_direction(
    forward: Callable[[Any], Any], inputs: Any, clean: Any, *, xi: float = 1e-3, iterations: int = 1, mask: Any = None
) -> Any:
    """Return, for each sample, the direction of norm 1 along which the output changes most; arguments as for `vat_loss`."""
    start = inputs.detach()
    direction = _unit(torch.randn_like(start))
    for _ in range(iterations):
        move = (direction * xi).requires_grad_()
        with torch.enable_grad():
            distance = kl(clean, forward(start + move), mask)
            found = torch.autograd.grad(distance, move)[0].detach()
        # If the output does not change at all, every direction is equally bad.
        direction = torch.where(norms(found) > 0, _unit(found), direction)
    return direction


def _unit(values: Any) -> Any:
    # Divide by the largest entry first: gradients of a KL near its minimum are so small that their squares underflow.
    scaled = values / values.abs().flatten(1).amax(1).clamp(min=_TINY**2).view(-1, *[1] * (values.dim() - 1))
    return scaled / norms(scaled).clamp(min=_TINY)
