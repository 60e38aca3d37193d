"""Optimizers by name, without weight decay for biases and norms."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from importlib import import_module
from typing import Any

from shoal.core.errors import UsageError


def make_optimizer(name: str, model: Any, *, lr: float, weight_decay: float) -> Any:
    """Return an optimizer of the model's parameters in two groups: biases and norms have no weight decay.

    Args:
        name: Class of torch.optim, or "LAMB"; upper and lower case do not matter.
        model: A module.
        lr: Learning rate.
        weight_decay: Weight decay of matrices.

    A fused implementation is used if there is one: it passes over the memory once instead of ten times, on CPU and GPU.

    Example:
        >>> optimizer = make_optimizer("AdamW", model, lr=3e-4, weight_decay=0.01)
    """
    kind, groups = find_optimizer(name), decay_groups(model, weight_decay)
    if "fused" in inspect.signature(kind).parameters:
        with contextlib.suppress(RuntimeError):  # fused is not supported for these parameters
            return kind(groups, lr=lr, fused=True)
    return kind(groups, lr=lr)


def decay_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups: matrices with weight decay; vectors and scalars (biases, norms) without."""
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in trained if p.dim() > 1]
    plain = [p for p in trained if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [g for g in groups if g["params"]]


def find_optimizer(name: str) -> Any:
    """Return the optimizer class of a name; raise UsageError with the nearest name if there is none."""
    if name.upper() == "LAMB":
        from shoal.train.optim.lamb import Lamb

        return Lamb
    optim: Any = import_module("torch.optim")
    known = {n.lower(): n for n in dir(optim) if isinstance(getattr(optim, n), type) and n != "Optimizer"}
    if name.lower() in known:
        return getattr(optim, known[name.lower()])
    near = difflib.get_close_matches(name.lower(), [*known, "lamb"], n=1)
    hint = f"did you mean {known.get(near[0], 'LAMB')}?" if near else "use a class of torch.optim, or LAMB"
    raise UsageError(f"there is no optimizer {name!r}", hint=hint)
