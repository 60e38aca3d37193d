"""Losses that torch does not have. Each is a mean over samples."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shoal.core.errors import UsageError

torch: Any = import_module("torch")
functional: Any = torch.nn.functional


def label_smoothing_loss(logits: Any, labels: Any, smoothing_factor: float, reduction: str = "batchmean") -> Any:
    """Return the KL divergence from smoothed labels. A factor of 0 gives cross entropy.

    Unlike cross_entropy(label_smoothing=…) in torch, the factor is spread over the wrong classes only, and the best loss is 0.

    Args:
        logits: [batch, classes].
        labels: [batch].
        smoothing_factor: Probability that is spread evenly over the wrong classes.
        reduction: "batchmean", "sum", "mean" (over classes too) or "none".

    Example:
        >>> loss = label_smoothing_loss(logits, labels, 0.1)
    """
    _check_shapes(logits, labels)
    classes = logits.size(1)
    rest = smoothing_factor / (classes - 1) if classes > 1 else 0.0
    wanted = torch.full_like(logits, rest).scatter(1, labels.unsqueeze(1), 1 - smoothing_factor)
    return functional.kl_div(torch.log_softmax(logits, 1), wanted, reduction=reduction)


class FocalLoss(torch.nn.Module):  # type: ignore[misc]
    """Cross entropy in which well-classified samples count less (Lin et al., 2017). A gamma of 0 is cross entropy.

    Example:
        >>> loss = FocalLoss(gamma=2.0)(logits, labels)
    """

    def __init__(self, gamma: float = 2.0):
        super().__init__()
        self._gamma = gamma

    def forward(self, logits: Any, labels: Any) -> Any:
        """Return the loss of logits [batch, classes] and labels [batch]."""
        _check_shapes(logits, labels)
        log_right = torch.log_softmax(logits, 1).gather(1, labels.unsqueeze(1)).squeeze(1)
        return -((1 - log_right.exp()).pow(self._gamma) * log_right).mean()


def masked_cross_entropy(logits: Any, labels: Any, mask: Any) -> Any:
    """Return the mean cross entropy of the tokens where the mask is true; 0 if it is nowhere true.

    Args:
        logits: […, classes].
        labels: […].
        mask: […], true for the tokens that count.

    Example:
        >>> loss = masked_cross_entropy(logits, labels, sequence_mask(lengths))
    """
    losses = functional.cross_entropy(logits.reshape(-1, logits.size(-1)), labels.reshape(-1), reduction="none")
    weights = mask.reshape(-1).to(losses.dtype)
    return (losses * weights).sum() / weights.sum().clamp(min=1)


def _check_shapes(logits: Any, labels: Any) -> None:
    if logits.dim() != 2 or labels.dim() != 1 or len(logits) != len(labels):
        raise UsageError(
            f"logits are {tuple(logits.shape)} and labels {tuple(labels.shape)}",
            hint="logits should be [batch, classes] and labels [batch]; flatten sequences first",
        )
