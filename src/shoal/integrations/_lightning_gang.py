"""Make Lightning run one training over all workers of a job. Standard library only: interpreters without shoal run it too.

Lightning counts CPUs as one device, however many workers a job has. Each worker would then silently train its own model. So
`devices="auto"` on CPUs becomes the number of workers, and a Trainer that is set up for another number of workers than the
job has refuses to fit.
"""

from __future__ import annotations

import functools
import os
from typing import Any

ACCELERATORS = (
    "lightning.pytorch.accelerators.cpu",
    "lightning.fabric.accelerators.cpu",
    "pytorch_lightning.accelerators.cpu",
    "lightning_fabric.accelerators.cpu",
)
TRAINERS = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


def is_gang() -> bool:
    """Check whether this is one of several workers that the agent or torchrun has started."""
    return _number("WORLD_SIZE") > 1 and "LOCAL_WORLD_SIZE" in os.environ and "TORCHELASTIC_RUN_ID" in os.environ


def count_workers_as_devices(module: Any) -> None:
    """Patch a module of ACCELERATORS: "auto" means as many CPU devices as this node has workers."""
    module.CPUAccelerator.auto_device_count = staticmethod(lambda: _number("LOCAL_WORLD_SIZE") if is_gang() else 1)


def guard(module: Any) -> None:
    """Patch the Trainer of a module of TRAINERS: it refuses to fit if its workers would train separate models."""
    fit = module.Trainer.fit
    if getattr(fit, "_shoal_guard", False):
        return

    @functools.wraps(fit)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        check_world(self)
        return fit(self, *args, **kwargs)

    guarded._shoal_guard = True  # type: ignore[attr-defined]
    module.Trainer.fit = guarded


def check_world(trainer: Any) -> None:
    """Raise RuntimeError if this Trainer does not count all the workers of the job as one training."""
    workers = _number("WORLD_SIZE")
    if is_gang() and trainer.world_size != workers:
        local = _number("LOCAL_WORLD_SIZE")
        raise RuntimeError(
            f"This job has {workers} workers, but the Trainer is set up for {trainer.world_size}: each worker would train its own "
            f"model. Omit devices= and num_nodes=, or use devices={local}, num_nodes={workers // local}."
        )


def _number(name: str) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else 1
