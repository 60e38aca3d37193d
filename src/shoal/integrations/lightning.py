"""Callback for Lightning's Trainer: metrics, progress, checkpoints, resume and graceful stop.

Works with Lightning 2.0 and later. The Trainer keeps the model, the loop and the checkpoint format. With Fabric, the script
has its own loop: there `run.step` is enough.
"""

from __future__ import annotations

import math
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.errors import MissingExtra, UsageError
from shoal.integrations import _lightning_gang as gang
from shoal.integrations._lightning_checkpoints import (
    HIDDEN,
    SUFFIX,
    is_written,
    last_checkpoint,
    output_dir,
    publish,
    withdraw,
)
from shoal.integrations._lightning_trainer import install, unclaimed_checkpoint
from shoal.sdk import library_loops, start
from shoal.sdk.device import demand_promised

if TYPE_CHECKING:
    from shoal.sdk.run import Run

__all__ = ["ShoalCallback", "last_checkpoint"]


def _package() -> str:
    """Return the Lightning package that the script uses. There are two, and each accepts its own callbacks only."""
    names = sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules)
    for name in names:
        try:
            import_module(name)
            return name
        except ImportError:
            continue
    raise MissingExtra("shoal.integrations.lightning needs Lightning.", hint="pip install lightning")


_PACKAGE = _package()
_Callback: Any = import_module(_PACKAGE).Callback
# On import, because Trainers are often created before their callbacks.
install(_PACKAGE)


class ShoalCallback(_Callback):  # type: ignore[misc]
    """Callback that records a Lightning training; pass an instance to `Trainer(callbacks=[…])`.

    It uses the run of `shoal.init(...)` if there is one, else it starts one. Only rank 0 writes metrics: the loss of every
    `log_every_n_steps`-th step as `train/loss`, and all metrics that the module logs, under their own names. Finished
    checkpoints of the Trainer are linked into the output directory of the job.

    Args:
        resume: Whether the first `trainer.fit()` without a `ckpt_path` resumes from the platform's checkpoint after a
            restart.

    Example::

        trainer = Trainer(max_epochs=3, callbacks=[ShoalCallback()])
        trainer.fit(module, loader)
    """

    def __init__(self, resume: bool = True) -> None:
        super().__init__()
        self.resumes_by_itself = resume
        self._run: Run | None = None
        self._loss: Any = None
        self._unpublished: dict[Path, tuple[int, dict[str, float]]] = {}
        """Checkpoints that the Trainer has started to write, with their step and metrics."""
        self._published: dict[Path, Path] = {}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Check the promised device, and move the Trainer's own files to a folder that the platform ignores."""
        demand_promised()
        output = output_dir()
        inside = output is not None and Path(trainer.default_root_dir).resolve().is_relative_to(output.resolve())
        for number, saver in enumerate(trainer.checkpoint_callbacks):
            if output is not None and inside and getattr(saver, "dirpath", "") is None:
                saver.dirpath = os.fspath(output / HIDDEN / str(number))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        gang.check_world(trainer)
        self._check_resumed(trainer)
        total = _total(trainer)
        self._run = start.current() or start.init(
            parallel="none",
            resume="never",
            max_steps=total,
            checkpoint_every_s=None,
            config=_plain(getattr(pl_module, "hparams", None)),
        )
        self._update_position(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        run, step = self._run, trainer.global_step
        if run is None or step == run.global_step:
            return
        self._update_position(trainer)
        every = max(1, trainer.log_every_n_steps)
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._loss = loss if loss is not None else self._loss
        if step == 1 or step % every == 0:
            own = _numbers(trainer.logged_metrics)
            library_loops.log_at(run, step, ({"train/loss": loss} if loss is not None else {}) | own)
        if run.should_stop and not trainer.should_stop and step < (_total(trainer) or math.inf):
            self._stop(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        found = _numbers(trainer.callback_metrics)
        if self._run is not None and found and not trainer.sanity_checking:
            self._run.evaluate(found)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._publish()

    def checkpoint_saved(self, trainer: Any, checkpoint: Path) -> None:
        """Publish a checkpoint that the Trainer has written or started to write; called on every rank."""
        if trainer.is_global_zero and output_dir() is not None and trainer.state.fn == "fit":
            loss = {} if self._loss is None else {"train/loss": float(self._loss)}
            logged = {name: float(value) for name, value in _numbers(trainer.callback_metrics).items()}
            self._unpublished[checkpoint] = (trainer.global_step, loss | logged)
            self._publish()

    def _publish(self) -> None:
        output = output_dir()
        for checkpoint, (step, metrics) in list(self._unpublished.items()):
            if output is not None and is_written(checkpoint):
                del self._unpublished[checkpoint]
                folder = publish(checkpoint, output, step, metrics)
                if folder is not None:
                    self._published[checkpoint] = folder
                    if self._run is not None:
                        library_loops.saved(self._run, step, folder.name)
        withdraw(self._published)

    def _stop(self, trainer: Any) -> None:
        """Save and leave the loop, on all ranks at the same step, also before `min_steps` or `min_epochs` are reached."""
        output = output_dir()
        folder = Path(trainer.default_root_dir) if output is None else output / HIDDEN
        trainer.save_checkpoint(folder / f"stopped-step={trainer.global_step}{SUFFIX}")
        trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
        trainer.should_stop = True

    def _check_resumed(self, trainer: Any) -> None:
        """Raise UsageError if a checkpoint was not loaded, instead of silently starting from the beginning.

        A callback from `configure_callbacks` is added too late to resume.
        """
        is_given = getattr(trainer, "ckpt_path", None) is not None
        if self.resumes_by_itself and not is_given and unclaimed_checkpoint() is not None:
            raise UsageError(
                "There is a checkpoint to resume from, but the Trainer was not given it.",
                hint="Use Trainer(callbacks=[ShoalCallback()]) to resume, or ShoalCallback(resume=False) to start from the beginning.",
            )

    def _update_position(self, trainer: Any) -> None:
        assert self._run is not None  # noqa: S101
        epochs = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
        library_loops.count(
            self._run, trainer.global_step, total=_total(trainer), epoch=float(trainer.current_epoch), epochs=epochs
        )


def _total(trainer: Any) -> int | None:
    """Return the total number of steps; None if there is no end (-1 or infinity in Lightning)."""
    steps = trainer.estimated_stepping_batches
    return int(steps) if math.isfinite(steps) and steps > 0 else None


def _numbers(metrics: Any) -> dict[str, Any]:
    return {str(k): v for k, v in metrics.items() if getattr(v, "numel", lambda: 1)() == 1 and hasattr(v, "__float__")}


def _plain(config: Any) -> dict[str, Any]:
    return {str(k): v for k, v in dict(config or {}).items() if isinstance(v, (int, float, str, bool))}
