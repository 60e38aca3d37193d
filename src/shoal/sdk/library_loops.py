"""Functions that let a run follow a library with its own loop and objects (the Hugging Face Trainer, NetMind's nmp).

They are not methods of Run, so that the interface scripts see stays small.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core import records
from shoal.sdk import values

if TYPE_CHECKING:
    from shoal.sdk.run import Run

logger = logging.getLogger(__name__)


def count(run: Run, step: int, *, total: int | None, epoch: float | None = None, epochs: int | None = None) -> None:
    """Set the global step the library has reached, and handle progress, signals and stops as run.step does."""
    run._step = run._stop.step = step
    aim(run, total=total, epochs=epochs)
    run._epoch = epoch
    now = time.time()
    if now >= run._tick_at:
        run._tick(now)
    if step >= run._stop.next_step:
        run._decide(step)


def aim(run: Run, *, total: int | None, epochs: int | None = None) -> None:
    """Set the total steps and epochs of the library; a change is recorded at the next step."""
    if (run._total, run._epochs) != (total, epochs):
        run._total, run._epochs = total, epochs
        run._tick_at = 0.0


def log_at(run: Run, step: int, metrics: Mapping[str, Any]) -> None:
    """Record metrics of a step that the library counts."""
    numbers = {k: values.now(values.plain(k, v)) for k, v in metrics.items()}
    if numbers and run.is_main:
        run._last = numbers
        run._spool.write_step(step, numbers, time.time())


def register(run: Run, *objects: Any) -> None:
    """Save and restore these objects unchanged. Nothing is wrapped, moved or loaded."""
    run._get_training().register(*objects)
    run._stop.every_s = run._options.checkpoint_every_s
    run._stop.saved()


def restore(run: Run) -> None:
    """Load the checkpoint to resume from into the registered objects that were not loaded yet. Collective.

    The random generators are restored later, by `restore_generators`: the script may still draw the order of its data.
    """
    from shoal.sdk.saving.rng import rng_state, set_rng_state

    drawn = rng_state()
    run._get_training().restore()
    set_rng_state(drawn)


def restore_generators(run: Run) -> None:
    """Restore the random generators from the checkpoint. Does nothing without a checkpoint, or once a step was made."""
    if run._training is not None and run._training.resumed:
        run._training._ready().restore_generators()


def save_soon(run: Run, extra: Sequence[Path] = ()) -> None:
    """Request a checkpoint from rank 0: all ranks save at a step they agree on; a single rank saves at once.

    Args:
        run: The run.
        extra: Files and folders to include in the checkpoint, copied now.
    """
    from shoal.sdk.saving.extras import stage

    stage(run.output_dir, extra)
    if run.world_size == 1:
        run.checkpoint()
    else:
        run._stop.request_save()


def saved(run: Run, step: int, name: str) -> None:
    """Record that the library's own checkpoint of this step is complete, under this name in the output directory."""
    if run.is_main:
        run._spool.put(records.Checkpoint(step=step, name=name))


def warn(run: Run, code: str, text: str) -> None:
    """Write a warning to the log and to the records of the run."""
    if run.is_main:
        logger.warning("%s", text)
        run._spool.put(records.Warning(code=code, text=text))
