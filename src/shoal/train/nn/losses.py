"""Losses beyond those of torch, each a mean over samples."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shoal.core.errors import UsageError

torch: Any = import_module("torch")
functional: Any = torch.nn.functional


def label_smoothing_loss(logits: Any, labels: Any, smoothing_factor: float, reduction: str = "batchmean") -> Any:
    """KL from labels that leave `smoothing_factor` to the wrong classes, evenly. 0 gives cross entropy.

    logits [batch, classes], labels [batch]; reduction "batchmean", "sum", "mean" (over classes too) or "none".
    torch's cross_entropy(label_smoothing=…) shares it among all classes, the right one too, and is not 0 at best.
    """
    _check_shapes(logits, labels)
    classes = logits.size(1)
    rest = smoothing_factor / (classes - 1) if classes > 1 else 0.0
    wanted = torch.full_like(logits, rest).scatter(1, labels.unsqueeze(1), 1 - smoothing_factor)
    return functional.kl_div(torch.log_softmax(logits, 1), wanted, reduction=reduction)


class FocalLoss(torch.nn.Module):  # type: ignore[misc]
    """Cross entropy in which samples that are right already count less (Lin et al., 2017). gamma 0 is cross entropy."""

    def __init__(self, gamma: float = 2.0):
        super().__init__()
        self._gamma = gamma

    def forward(self, logits: Any, labels: Any) -> Any:
        """logits [batch, classes], labels [batch]."""
        _check_shapes(logits, labels)
        log_right = torch.log_softmax(logits, 1).gather(1, labels.unsqueeze(1)).squeeze(1)
        return -((1 - log_right.exp()).pow(self._gamma) * log_right).mean()


def masked_cross_entropy(logits: Any, labels: Any, mask: Any) -> Any:
    """Of the tokens where the mask is true: logits […, classes], labels and mask […]. 0 where it nowhere is."""
    losses = functional.cross_entropy(logits.reshape(-1, logits.size(-1)), labels.reshape(-1), reduction="none")
    weights = mask.reshape(-1).to(losses.dtype)
    return (losses * weights).sum() / weights.sum().clamp(min=1)


def _check_shapes(logits: Any, labels: Any) -> None:
    if logits.dim() != 2 or labels.dim() != 1 or len(logits) != len(labels):
        raise UsageError(
            f"logits are {tuple(logits.shape)} and labels {tuple(labels.shape)}",
            hint="logits should be [batch, classes] and labels [batch]; flatten sequences first",
        )
