"""For libraries that keep a loop or objects of their own (the Hugging Face Trainer, NetMind's nmp): a run that follows them.

These are functions on a Run rather than methods of it, so that what scripts see stays small.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.sdk import values

if TYPE_CHECKING:
    from shoal.sdk.run import Run

logger = logging.getLogger(__name__)


def count(run: Run, step: int, *, total: int | None, epoch: float | None = None, epochs: int | None = None) -> None:
    """The library has reached this global step: progress, signals and stops are looked after as run.step does."""
    run._step = run._stop.step = step
    aim(run, total=total, epochs=epochs)
    run._epoch = epoch
    now = time.time()
    if now >= run._tick_at:
        run._tick(now)
    if step >= run._stop.next_step:
        run._decide(step)


def aim(run: Run, *, total: int | None, epochs: int | None = None) -> None:
    """What the library means to reach; told at once when it becomes known."""
    if (run._total, run._epochs) != (total, epochs):
        run._total, run._epochs = total, epochs
        run._tick_at = 0.0


def log_at(run: Run, step: int, metrics: Mapping[str, Any]) -> None:
    """Numbers of a step the library has counted."""
    numbers = {k: values.now(values.plain(k, v)) for k, v in metrics.items()}
    if numbers and run.is_main:
        run._last = numbers
        run._spool.write_step(step, numbers, time.time())


def register(run: Run, *objects: Any) -> None:
    """Have these objects saved and restored as they are. Nothing is wrapped, moved or loaded."""
    run._get_training().register(*objects)
    run._stop.every_s = run._options.checkpoint_every_s
    run._stop.saved()


def restore(run: Run) -> None:
    """Collective. Load the checkpoint to go on from into what is registered and has not been loaded yet.

    The random generators wait for `restore_generators`: the script may still be drawing the order of its data.
    """
    from shoal.sdk.saving.rng import rng_state, set_rng_state

    drawn = rng_state()
    run._get_training().restore()
    set_rng_state(drawn)


def restore_generators(run: Run) -> None:
    """The random generators go on where the checkpoint left them; nothing if there is none, or once a step was made."""
    if run._training is not None and run._training.resumed:
        run._training._ready().restore_generators()


def save_soon(run: Run, extra: Sequence[Path] = ()) -> None:
    """From rank 0: all ranks save together, at a step they agree on; with these files and folders, as they are now.

    A rank alone need not ask, and saves at once.
    """
    from shoal.sdk.saving.extras import stage

    stage(run.output_dir, extra)
    if run.world_size == 1:
        run.checkpoint()
    else:
        run._stop.request_save()


def saved(run: Run, step: int, name: str) -> None:
    """Note that the library's own checkpoint of this step is complete, under this name in the output directory."""
    if run.is_main:
        run._spool.write("c", i=step, name=name)


def warn(run: Run, code: str, text: str) -> None:
    """Say something once, in the log and beside the run."""
    if run.is_main:
        logger.warning("%s", text)
        run._spool.write("w", code=code, text=text)
