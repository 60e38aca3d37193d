"""R-Drop (Liang et al., 2021): two passes of one batch, with different dropout, should agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.train.regularize.distance import symmetric_kl


def rdrop_loss(one: Any, other: Any, mask: Any = None) -> Any:
    """Half the KL one way and half the other, of two outputs for the same batch; gradients flow into both."""
    return symmetric_kl(one, other, mask) / 2


def rdrop_step(
    forward: Callable[[], Any], loss: Callable[[Any], Any], *, alpha: float = 1.0, mask: Any = None
) -> tuple[Any, Any]:
    """(loss, first logits): the mean loss of two passes and `alpha` times their disagreement.

    forward  gives the logits of the batch; the model must be in training mode, or both passes are the same
    loss     gives the loss of logits
    """
    one, other = forward(), forward()
    return (loss(one) + loss(other)) / 2 + alpha * rdrop_loss(one, other, mask), one
