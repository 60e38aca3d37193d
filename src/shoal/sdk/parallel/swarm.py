"""Peer of a swarm: it holds the whole model and makes its steps together with machines that join and leave."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from shoal.core.errors import UsageError
from shoal.sdk.parallel.base import Parallel
from shoal.sdk.parallel.none import NoParallel

logger = logging.getLogger(__name__)


def make_peer(device: torch.device, world_size: int, given: Mapping[str, Any] | None) -> Parallel:
    """Return a swarm peer with the settings of the ticket of `shoal swarm join` and of `given`.

    Without a ticket and settings, the script trains alone, with a warning.
    """
    if world_size > 1:
        raise UsageError(
            f"a peer of a swarm is one process, but this one has {world_size} workers",
            hint="start it without torchrun: each accelerator joins as its own peer",
        )
    found = import_module("shoal.swarm.settings").gather_settings(given or {})
    if found is None:
        logger.warning("shoal: no swarm was joined, so this process trains alone; to join one: shoal swarm join LINK")
        return NoParallel(device)
    return SwarmPeer(device, found)


class SwarmPeer(NoParallel):
    name = "swarm"

    def __init__(self, device: torch.device, settings: Any) -> None:
        super().__init__(device)
        self._settings = settings
        self._model: nn.Module | None = None
        self._optimizer: Optimizer | None = None
        self._passed = 0
        self._stepping = False
        """True inside a step: hivemind calls the optimizer's step itself once the swarm has a whole batch."""
        self.swarm: Any = None
        self.data_seed = import_module("shoal.swarm.settings").data_seed(settings)

    def adopt(self, model: nn.Module, optimizer: Optimizer) -> None:
        super().adopt(model, optimizer)
        if self._optimizer is not None:
            raise UsageError(
                "a swarm trains with one optimizer, but this script prepares two",
                hint="put the parameters into groups of one optimizer",
            )
        self._model, self._optimizer = model, optimizer
        inner_step = optimizer.step

        def step(_: Any, *args: Any, **options: Any) -> Any:
            if self.swarm is None or self._stepping:
                return inner_step(*args, **options)
            self._stepping = True
            try:
                with self._engine.exits_when_lost(self._settings):
                    return self.swarm.step(lambda: inner_step(*args, **options), self._samples())
            finally:
                self._stepping = False

        if hasattr(inner_step, "_wrapped_by_lr_sched"):
            step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]

    def wrap(self, model: nn.Module) -> nn.Module:
        model.register_forward_pre_hook(self._count, with_kwargs=True)
        return super().wrap(model)

    def begin(self, schedulers: Sequence[Any], samples: Callable[[], int | None]) -> None:
        """Join the swarm once there is a model and an optimizer."""
        if self.swarm is not None or self._optimizer is None or self._model is None:
            return
        if len(schedulers) > 1:
            raise UsageError(
                "a swarm supports one scheduler", hint="combine them with torch.optim.lr_scheduler.ChainedScheduler"
            )
        self._loader_samples = samples
        self._engine = import_module("shoal.swarm.optimizer")
        self.swarm = self._engine.join(self._settings, self._model, self._optimizer, next(iter(schedulers), None))

    def note(self, metrics: Mapping[str, float]) -> None:
        loss = metrics.get("loss")
        if self.swarm is not None and isinstance(loss, (int, float)):
            self.swarm.note(float(loss))

    def close(self) -> None:
        if self.swarm is not None:
            self.swarm.leave()

    def _samples(self) -> int:
        """Return the number of samples behind the gradients of the current step."""
        passed, self._passed = self._passed, 0
        from_loader = self._loader_samples()
        return from_loader if from_loader is not None else max(1, passed)

    def _count(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Count the samples that pass through the model, for scripts whose loader is not prepared."""
        if not torch.is_grad_enabled() or not model.training:
            return
        given = torch.utils._pytree.tree_leaves((args, kwargs))
        first = next((value for value in given if isinstance(value, torch.Tensor) and value.dim() > 0), None)
        self._passed += len(first) if first is not None else 1
