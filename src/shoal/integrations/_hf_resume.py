"""Lets `trainer.train()` go on by itself: Trainer.train is told of the checkpoint when one of its callbacks is ours.

A callback cannot do that alone, as the Trainer loads checkpoints before it calls any callback.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.integrations._hf_checkpoints import is_own, last_checkpoint, newest

logger = logging.getLogger(__name__)


def install() -> None:
    """Wrap Trainer.train, once per process. Trainers without our callback behave as ever."""
    Trainer: Any = import_module("transformers").Trainer
    original = Trainer.train
    if getattr(original, "_shoal", False):
        return

    @functools.wraps(original)
    def train(self: Any, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        ours = any(getattr(c, "resumes_by_itself", False) for c in self.callback_handler.callbacks)
        chosen = choose(self, resume_from_checkpoint) if ours else resume_from_checkpoint
        if chosen is None or chosen is False:
            return original(self, chosen, *args, **kwargs)
        with loadable():
            return original(self, chosen, *args, **kwargs)

    train._shoal = True  # type: ignore[attr-defined]
    Trainer.train = train


def choose(trainer: Any, asked: str | bool | None) -> str | bool | None:
    """What to resume from: what was asked for, else what the platform gives, if it is meant to be gone on with."""
    if asked is False or isinstance(asked, str | os.PathLike):
        return asked
    if asked is True:
        # An attempt starts with an empty output directory: what it wrote before is where the platform put it.
        return True if newest(Path(trainer.args.output_dir)) else last_checkpoint()
    given = os.environ.get("SHOAL_RESUME_FROM")
    found = newest(Path(given)) if given else None
    if given is None or found is None or (not is_own(found) and _weights_come_from(trainer.model, given)):
        return None
    logger.info("going on from checkpoint %s", found)
    return str(found)


def _weights_come_from(model: Any, folder: str) -> bool:
    """The script has loaded this checkpoint's weights itself, to fine-tune them: a new training, not the old one."""
    name = getattr(getattr(model, "config", None), "_name_or_path", "") or ""
    if not name or not Path(name).exists():
        return False
    return Path(name).resolve().is_relative_to(Path(folder).resolve())


@contextmanager
def loadable() -> Iterator[None]:
    """Lets transformers and accelerate of 2024 read the checkpoints they wrote with a torch of today."""
    np: Any = import_module("numpy")
    torch: Any = import_module("torch")
    # Accelerate 0.34 calls the CPU of a worker cpu:0, cpu:1 …, and loads to there.
    torch.serialization.register_package(90, lambda _: None, _restore_to_cpu)
    # numpy's generator is in rng_state.pth, which torch since 2.6 refuses unless told that it is fine. These four harmless
    # names are enough; TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 would allow any code at all.
    core = np._core if int(np.__version__.split(".")[0]) >= 2 else np.core
    names = [core.multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]
    with torch.serialization.safe_globals(names):
        yield


def _restore_to_cpu(storage: Any, location: str) -> Any:
    return storage if location.startswith("cpu:") else None
