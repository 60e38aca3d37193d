"""Hooks installed after `import torch`: they observe models, gradients, optimizers, losses, data and checkpoints."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from . import checkpoints, loaders, losses, models, optimizers
from .probe import Probe


def install(torch: ModuleType, probe: Probe) -> None:
    probe.reach("import")
    probe.facts["torch"] = str(torch.__version__)
    seen = models.Models(torch, probe)
    steps = optimizers.Optimizers(torch, probe, seen)
    _watch_backward(torch, probe, seen, steps)
    losses.install(torch, probe)
    loaders.install(torch, probe)
    checkpoints.Checkpoints(torch, probe, seen, steps)


def _watch_backward(torch: Any, probe: Probe, models: models.Models, steps: optimizers.Optimizers) -> None:
    original = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not probe.is_here:
            return original(tensors, *args, **kwargs)
        first = tensors[0] if isinstance(tensors, list | tuple) else tensors
        if not losses.is_finite(torch, first):
            blamed = models.not_finite or "the loss function"
            probe.find(
                "not-finite",
                f"The loss of step {probe.seen.steps + 1} is not finite; first in {blamed}.",
                where=probe.here(),
            )
        steps.backward_begins()
        models.in_backward = True
        try:
            return original(tensors, *args, **kwargs)
        finally:
            models.in_backward = False
            probe.seen.backwards += 1
            models.trained()
            probe.reach("backward")

    torch.autograd.backward = backward
