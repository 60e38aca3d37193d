"""R-Drop (Liang et al., 2021): two passes of a batch with different dropout should give the same output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.train.regularize.distance import symmetric_kl


def rdrop_loss(one: Any, other: Any, mask: Any = None) -> Any:
    """Return the mean of the KL divergences in both directions between two outputs of a batch. Gradients flow into both.

    Args:
        one, other: Logits of two passes of the same batch.
        mask: True for the outputs that count.

    Example:
        >>> loss = task_loss + rdrop_loss(model(x), model(x))
    """
    return symmetric_kl(one, other, mask) / 2


def rdrop_step(
    forward: Callable[[], Any], loss: Callable[[Any], Any], *, alpha: float = 1.0, mask: Any = None
) -> tuple[Any, Any]:
    """Return (loss, logits of the first pass). The loss is the mean of two passes plus `alpha` times their R-Drop loss.

    Args:
        forward: Returns the logits of the batch. The model must be in training mode, or both passes are equal.
        loss: Returns the loss of logits.
        alpha: Weight of the R-Drop term.
        mask: True for the outputs that count.

    Example:
        >>> loss, logits = rdrop_step(lambda: model(x), lambda logits: cross_entropy(logits, labels))
    """
    one, other = forward(), forward()
    return (loss(one) + loss(other)) / 2 + alpha * rdrop_loss(one, other, mask), one
