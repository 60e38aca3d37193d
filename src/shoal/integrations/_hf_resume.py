"""Automatic resume of `trainer.train()`: the wrapped Trainer.train gets the checkpoint if the Trainer has our callback.

A callback alone cannot do that, because the Trainer loads checkpoints before it calls any callback.
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
    """Wrap Trainer.train, once per process. Trainers without our callback are not affected."""
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
    """Return the checkpoint to resume from: the requested one, else that of the platform.

    The platform's checkpoint is not used if another job wrote it and the script has loaded its weights for fine-tuning.
    """
    if asked is False or isinstance(asked, str | os.PathLike):
        return asked
    if asked is True:
        # An attempt starts with an empty output directory: earlier checkpoints are where the platform put them.
        return True if newest(Path(trainer.args.output_dir)) else last_checkpoint()
    given = os.environ.get("SHOAL_RESUME_FROM")
    found = newest(Path(given)) if given else None
    if given is None or found is None or (not is_own(found) and _weights_come_from(trainer.model, given)):
        return None
    logger.info("resuming from checkpoint %s", found)
    return str(found)


def _weights_come_from(model: Any, folder: str) -> bool:
    """Check whether the script has loaded this checkpoint's weights itself: it fine-tunes them in a new training."""
    name = getattr(getattr(model, "config", None), "_name_or_path", "") or ""
    if not name or not Path(name).exists():
        return False
    return Path(name).resolve().is_relative_to(Path(folder).resolve())


@contextmanager
def loadable() -> Iterator[None]:
    """Let versions of transformers and accelerate from 2024 read their own checkpoints with a recent torch."""
    np: Any = import_module("numpy")
    torch: Any = import_module("torch")
    # Accelerate 0.34 names the CPU of a worker cpu:0, cpu:1 … and loads to that device.
    torch.serialization.register_package(90, lambda _: None, _restore_to_cpu)
    # rng_state.pth contains numpy's generator, which torch 2.6 and later refuse to load. Allowing these four harmless names
    # is enough; TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 would allow any code.
    core = np._core if int(np.__version__.split(".")[0]) >= 2 else np.core
    names = [core.multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]
    with torch.serialization.safe_globals(names):
        yield


def _restore_to_cpu(storage: Any, location: str) -> Any:
    return storage if location.startswith("cpu:") else None
