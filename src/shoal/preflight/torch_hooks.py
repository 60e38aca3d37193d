"""What `import torch` is followed by: models, gradients, optimizers, losses, data and checkpoints tell the trial what they do."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from . import checkpoints, loaders, losses, models, optimizers
from .trial import Trial


def install(torch: ModuleType, trial: Trial) -> None:
    trial.reach("import")
    trial.facts["torch"] = str(torch.__version__)
    seen = models.Models(torch, trial)
    steps = optimizers.Optimizers(torch, trial, seen)
    _watch_backward(torch, trial, seen, steps)
    losses.install(torch, trial)
    loaders.install(torch, trial)
    checkpoints.Checkpoints(torch, trial, seen, steps)


def _watch_backward(torch: Any, trial: Trial, models: models.Models, steps: optimizers.Optimizers) -> None:
    original = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not trial.is_here:
            return original(tensors, *args, **kwargs)
        first = tensors[0] if isinstance(tensors, list | tuple) else tensors
        if not losses.is_finite(torch, first):
            blamed = models.not_finite or "the loss function"
            trial.find(
                "not-finite",
                f"The loss of step {trial.seen.steps + 1} is not finite; first in {blamed}.",
                where=trial.here(),
            )
        steps.backward_begins()
        models.in_backward = True
        try:
            return original(tensors, *args, **kwargs)
        finally:
            models.in_backward = False
            trial.seen.backwards += 1
            models.trained()
            trial.reach("backward")

    torch.autograd.backward = backward
