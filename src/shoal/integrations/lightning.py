"""`Trainer(..., callbacks=[ShoalCallback()])`: metrics, progress and graceful stop for Lightning's Trainer, 2.0 and later.

The Trainer keeps the model, the loop and its checkpoints; nothing is wrapped. For Fabric, whose loop is the script's own,
`run.step` is enough.
"""

from __future__ import annotations

import math
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.core.errors import MissingExtra
from shoal.sdk import adapt, start
from shoal.sdk.device import demand_promised

if TYPE_CHECKING:
    from shoal.sdk.run import Run

__all__ = ["ShoalCallback"]


def _callback_class() -> Any:
    """Of the package the script itself uses: they are twins, and each takes only its own."""
    names = sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules)
    for name in names:
        try:
            return import_module(name).Callback
        except ImportError:
            continue
    raise MissingExtra("shoal.integrations.lightning needs Lightning.", hint="pip install lightning")


_Callback: Any = _callback_class()


class ShoalCallback(_Callback):  # type: ignore[misc]
    """Give an instance to `Trainer(callbacks=[…])`.

    Uses the run of `shoal.init(...)` if there is one, else starts one. Only rank 0 writes metrics: the loss of every
    `log_every_n_steps`-th step as `train/loss`, and whatever the module logs by its own names.
    """

    def __init__(self) -> None:
        super().__init__()
        self._run: Run | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        demand_promised()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        total = _total(trainer)
        self._run = start.current() or start.init(
            parallel="none",
            resume="never",
            max_steps=total,
            checkpoint_every_s=None,
            config=_plain(getattr(pl_module, "hparams", None)),
        )
        self._tell_position(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        run, step = self._run, trainer.global_step
        if run is None or step == run.global_step:
            return
        self._tell_position(trainer)
        every = max(1, trainer.log_every_n_steps)
        if step == 1 or step % every == 0:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            own = _numbers(trainer.logged_metrics)
            adapt.log_at(run, step, ({"train/loss": loss} if loss is not None else {}) | own)
        if run.should_stop:
            trainer.should_stop = True

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        found = _numbers(trainer.callback_metrics)
        if self._run is not None and found and not trainer.sanity_checking:
            self._run.evaluate(found)

    def _tell_position(self, trainer: Any) -> None:
        assert self._run is not None  # noqa: S101
        epochs = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
        adapt.count(
            self._run, trainer.global_step, total=_total(trainer), epoch=float(trainer.current_epoch), epochs=epochs
        )


def _total(trainer: Any) -> int | None:
    """Steps it is to take; Lightning says -1 or infinity for no end."""
    steps = trainer.estimated_stepping_batches
    return int(steps) if math.isfinite(steps) and steps > 0 else None


def _numbers(metrics: Any) -> dict[str, Any]:
    return {str(k): v for k, v in metrics.items() if getattr(v, "numel", lambda: 1)() == 1 and hasattr(v, "__float__")}


def _plain(config: Any) -> dict[str, Any]:
    return {str(k): v for k, v in dict(config or {}).items() if isinstance(v, (int, float, str, bool))}
