"""VAT, R-Drop and SMART under TopSpin's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.core.errors import UsageError
from shoal.train.regularize import rdrop_loss, smart_loss, vat_loss
from shoal.train.regularize.distance import kl

__all__ = ["kl_divergence_with_logit", "r_drop_regularize", "smart_loss", "vat_adversarial_loss"]


def vat_adversarial_loss(
    x: Any,
    logit: Any,
    model_fn: Callable[[Any], Any],
    epsilon: float = 2,
    xi: float = 1e-6,
    power_iteration_num: int = 1,
) -> Any:
    """Return the change of the logits if x moves by `epsilon` in the worst direction. `model_fn` may return (logits, …)."""

    def forward(moved: Any) -> Any:
        made = model_fn(moved)
        return made[0] if isinstance(made, tuple | list) else made

    return vat_loss(forward, x, logit, epsilon=epsilon, xi=xi, iterations=power_iteration_num)


def r_drop_regularize(logits: Any, logits_2: Any, task_type: str = "classification") -> Any:
    """Return the R-Drop loss between two passes of the same batch."""
    if task_type != "classification":
        raise UsageError(f"task_type is {task_type!r}", hint="R-Drop is for classification")
    return rdrop_loss(logits, logits_2)


def kl_divergence_with_logit(q_logit: Any, p_logit: Any) -> Any:
    return kl(q_logit, p_logit)
