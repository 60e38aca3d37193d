"""Registry of the objects passed to NetmindModel, NetmindOptimizer and similar functions, which return them unchanged."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Registered:
    """The script's own objects, remembered for saving. `on_scheduler` is called for schedulers registered after a resume."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.models: list[Any] = []
        self.optimizers: list[Any] = []
        self.schedulers: list[Any] = []
        self.loaders: list[Any] = []
        self.on_scheduler: Callable[[Any], None] | None = None

    def model(self, model: T) -> T:
        """Remember a model, plain or wrapped in DDP, and return the same object.

        A wrapper that is registered after its plain model replaces it.
        """
        inner = getattr(model, "module", model)
        self.models = [m for m in self.models if getattr(m, "module", m) is not inner]
        self.models.append(model)
        return model

    def optimizer(self, optimizer: T) -> T:
        """Remember an optimizer and return the same object."""
        _add(self.optimizers, optimizer)
        return optimizer

    def scheduler(self, scheduler: T) -> T:
        """Remember a learning-rate scheduler and return the same object."""
        if _add(self.schedulers, scheduler) and self.on_scheduler is not None:
            self.on_scheduler(scheduler)
        return scheduler

    def loader(self, loader: T) -> T:
        """Remember a data loader and return the same object."""
        _add(self.loaders, loader)
        return loader

    def find_schedulers(self) -> None:
        """Find and remember unregistered schedulers of the registered optimizers.

        NetMind's guide never registers its scheduler; without this a resumed run would repeat the warm-up.
        """
        if not self.optimizers:
            return
        from torch.optim.lr_scheduler import LRScheduler

        alive = [o for o in gc.get_objects() if issubclass(type(o), LRScheduler)]
        parts = {id(part) for whole in alive for part in getattr(whole, "_schedulers", ())}
        for scheduler in alive:
            of_ours = any(getattr(scheduler, "optimizer", None) is o for o in self.optimizers)
            if of_ours and id(scheduler) not in parts:
                self.scheduler(scheduler)


def _add(items: list[Any], item: Any) -> bool:
    if any(item is i for i in items):
        return False
    items.append(item)
    return True
