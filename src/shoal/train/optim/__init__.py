"""Optimizers by name, with weight decay only where it belongs."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from importlib import import_module
from typing import Any

from shoal.core.errors import UsageError


def make_optimizer(name: str, model: Any, *, lr: float, weight_decay: float) -> Any:
    """A class of torch.optim, or LAMB, over the model's parameters in two groups: biases and norms do not decay.

    Fused where there is such a thing: one pass over the memory instead of ten, on the CPU as on a GPU.
    """
    kind, groups = find_optimizer(name), decay_groups(model, weight_decay)
    if "fused" in inspect.signature(kind).parameters:
        with contextlib.suppress(RuntimeError):  # not for these parameters
            return kind(groups, lr=lr, fused=True)
    return kind(groups, lr=lr)


def decay_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; vectors and scalars (biases, norms) do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in trained if p.dim() > 1]
    plain = [p for p in trained if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [g for g in groups if g["params"]]


def find_optimizer(name: str) -> Any:
    """The class of that name."""
    if name.upper() == "LAMB":
        from shoal.train.optim.lamb import Lamb

        return Lamb
    optim: Any = import_module("torch.optim")
    known = {n.lower(): n for n in dir(optim) if isinstance(getattr(optim, n), type) and n != "Optimizer"}
    if name.lower() in known:
        return getattr(optim, known[name.lower()])
    near = difflib.get_close_matches(name.lower(), [*known, "lamb"], n=1)
    hint = f"did you mean {known.get(near[0], 'LAMB')}?" if near else "any class of torch.optim will do, or LAMB"
    raise UsageError(f"there is no optimizer {name!r}", hint=hint)
