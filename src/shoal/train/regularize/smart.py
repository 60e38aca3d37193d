"""Smoothness term of SMART (Jiang et al., 2020): the output should change little within a small ball around the inputs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

from shoal.core.errors import UsageError
from shoal.train.regularize.distance import norms, squared, symmetric_kl

torch: Any = import_module("torch")

Norm = Literal["inf", "l2"]


def smart_loss(
    forward: Callable[[Any], Any],
    inputs: Any,
    logits: Any,
    *,
    epsilon: float = 1e-3,
    step_size: float = 1e-3,
    noise: float = 1e-5,
    steps: int = 1,
    norm: Norm = "inf",
    regression: bool = False,
    mask: Any = None,
) -> Any:
    """Return the distance of the output at the worst point of the ball from that at its centre. Gradients flow into both.

    Args:
        forward: Returns logits for inputs; for text the inputs are embeddings.
        inputs: Centre of the ball.
        logits: Output of `forward` at `inputs`.
        epsilon: Radius of the ball around each sample, in `norm`.
        step_size: Step of the gradient ascent that searches the worst point.
        noise: Distance of the ascent's random starting point.
        steps: Number of ascent steps.
        norm: "inf" or "l2".
        regression: Outputs are numbers, compared by squared distance; otherwise logits, compared by symmetric KL.
        mask: True for the outputs that count.

    Example:
        >>> loss = cross_entropy(logits, labels) + smart_loss(model.from_embeddings, embeddings, logits)
    """
    distance = squared if regression else symmetric_kl
    clean = logits.detach()
    move = perturbation(
        forward,
        inputs,
        lambda moved: distance(clean, moved, mask),
        epsilon=epsilon,
        step_size=step_size,
        noise=noise,
        steps=steps,
        norm=norm,
    )
    return distance(logits, forward(inputs + move), mask)


def perturbation(
    forward: Callable[[Any], Any],
    inputs: Any,
    distance: Callable[[Any], Any],
    *,
    epsilon: float,
    step_size: float,
    noise: float,
    steps: int,
    norm: Norm = "inf",
) -> Any:
    """Return a perturbation within the ball that increases `distance` of the output; arguments as for `smart_loss`."""
    if norm not in ("inf", "l2"):
        raise UsageError(f"norm is {norm!r}, and should be 'inf' or 'l2'")
    start = inputs.detach()
    move = _within(torch.randn_like(start) * noise, epsilon, norm)
    for _ in range(steps):
        move.requires_grad_()
        with torch.enable_grad():
            uphill = torch.autograd.grad(distance(forward(start + move)), move)[0]
        move = _within(move.detach() + step_size * _direction(uphill, norm), epsilon, norm)
    return move.detach()


def _direction(gradient: Any, norm: Norm) -> Any:
    """Return the steepest direction of norm 1."""
    if norm == "inf":
        return gradient.sign()
    size = norms(gradient)
    return torch.where(
        size > 0, gradient / size.clamp(min=torch.finfo(gradient.dtype).tiny), torch.zeros_like(gradient)
    )


def _within(move: Any, epsilon: float, norm: Norm) -> Any:
    if norm == "inf":
        return move.clamp(-epsilon, epsilon)
    return move * (epsilon / norms(move).clamp(min=epsilon))
