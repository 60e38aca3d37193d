"""Wraps Trainer.fit and Trainer.save_checkpoint for Trainers that have our callback: to resume, and to get checkpoints.

A callback alone cannot do that: the checkpoint to load is chosen before it is called, and it is not called after a save.
"""

from __future__ import annotations

import functools
import inspect
import logging
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.integrations import _lightning_gang as gang
from shoal.integrations._lightning_checkpoints import last_checkpoint

logger = logging.getLogger(__name__)

_resumed = False
"""True once a Trainer of this process got the platform's checkpoint: later Trainers start new trainings."""


def install(package: str) -> None:
    """Wrap the Trainer of `lightning.pytorch` or `pytorch_lightning`, once per process.

    Trainers without our callback are not affected.
    """
    fabric = package.replace("pytorch_lightning", "lightning_fabric").replace(".pytorch", ".fabric")
    for name in (package, fabric):
        gang.count_workers_as_devices(import_module(f"{name}.accelerators.cpu"))
    Trainer: Any = import_module(package).Trainer
    if getattr(Trainer.fit, "_shoal", False):
        return
    Trainer.fit = _resuming(Trainer.fit)
    Trainer.save_checkpoint = _reporting(Trainer.save_checkpoint)


def _resuming(fit: Any) -> Any:
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def resuming(self: Any, *args: Any, **kwargs: Any) -> Any:
        ours = _callback_of(self)
        if ours is None:
            return fit(self, *args, **kwargs)
        gang.check_world(self)
        bound = signature.bind(self, *args, **kwargs)
        if bound.arguments.get("ckpt_path") is None and ours.resumes_by_itself:
            bound.arguments["ckpt_path"] = _checkpoint_once()
        return fit(*bound.args, **bound.kwargs)

    resuming._shoal = True  # type: ignore[attr-defined]
    return resuming


def _reporting(save: Any) -> Any:
    @functools.wraps(save)
    def reporting(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        saved = save(self, filepath, *args, **kwargs)
        if (ours := _callback_of(self)) is not None:
            ours.checkpoint_saved(self, Path(filepath))
        return saved

    return reporting


def _callback_of(trainer: Any) -> Any:
    return next((c for c in trainer.callbacks if hasattr(c, "resumes_by_itself")), None)


def unclaimed_checkpoint() -> str | None:
    """Return the platform's checkpoint if no Trainer of this process has resumed from it, else None."""
    return None if _resumed else last_checkpoint()


def _checkpoint_once() -> str | None:
    global _resumed
    found = unclaimed_checkpoint()
    if found is not None:
        _resumed = True
        logger.info("resuming from checkpoint %s", found)
    return found
