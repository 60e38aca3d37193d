"""What a script can ask its run: where it stands, on what, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.agent.wire import STOP_REASON
from shoal.core.errors import UsageError
from shoal.sdk.context import Context
from shoal.sdk.options import Options
from shoal.sdk.spool import Spool
from shoal.sdk.stop import Stop

if TYPE_CHECKING:
    import torch

    from shoal.sdk.parallel import Parallel
    from shoal.sdk.training import Training


class Facts:
    """The readable side of Run."""

    _spool: Spool
    _stop: Stop

    def __init__(self, context: Context, options: Options):
        self._context, self._options = context, options
        self._main = context.is_main
        self._training: Training | None = None
        self._device: torch.device | None = None
        self._step = 0
        self._total = options.max_steps
        self._epochs: int | None = None
        self._epoch: float | None = None
        self._last: dict[str, float] = {}
        self._halted = False

    @property
    def name(self) -> str:
        return self._context.name

    @property
    def rank(self) -> int:
        return self._context.rank

    @property
    def local_rank(self) -> int:
        return self._context.local_rank

    @property
    def world_size(self) -> int:
        return self._context.world_size

    @property
    def is_main(self) -> bool:
        return self._main

    @property
    def device(self) -> torch.device:
        """Where this worker trains."""
        if self._device is None:
            from shoal.sdk.device import choose_device

            alone = self._context.world_size == 1
            self._device = choose_device(self._context.local_rank, self._options.device, alone=alone)
        return self._device

    @property
    def swarm(self) -> Any:
        """This peer's part in the swarm (`round`, `global_step`, `num_peers`); None where the script trains alone."""
        return getattr(self._training.parallel, "swarm", None) if self._training is not None else None

    @property
    def global_step(self) -> int:
        """Optimizer steps done, over all attempts."""
        return self._step

    @property
    def epoch(self) -> float | None:
        """Epochs done, with the part of the present one; None while nothing tells."""
        known = self._training.epoch if self._training is not None else None
        return known if known is not None else self._epoch

    @property
    def start_epoch(self) -> int:
        """Epochs that were finished before this process started: for `range(run.start_epoch, n)`."""
        return self._training.start_epoch if self._training is not None else 0

    @property
    def resumed(self) -> bool:
        """Whether this process went on from a checkpoint."""
        return self._training is not None and self._training.resumed

    @property
    def is_boundary(self) -> bool:
        """Whether the iteration at hand completes a step; the others only add to its gradient."""
        return self._training is None or self._training.is_boundary

    @property
    def batch_samples(self) -> int | None:
        """Samples of the batch at hand that count on this worker; None where the loader's order is its own."""
        return None if self._training is None else self._training.batch_samples

    @property
    def parallel(self) -> Parallel:
        """How the model is spread over the workers, and which share of the data this one reads."""
        return self._ready().parallel

    @property
    def session(self) -> str:
        """The same on every worker, another one in every attempt."""
        return self._ready().session

    def _ready(self) -> Training:
        if self._training is None:
            raise UsageError("nothing is prepared yet", hint="run.prepare(model, optimizer, …) comes first")
        return self._training

    @property
    def should_stop(self) -> bool:
        """True on every rank from the same step on, or when max_steps are done: leave the loop. The checkpoint is taken care of."""
        return self._halted or (self._options.max_steps is not None and self._step >= self._options.max_steps)

    @property
    def stop_reason(self) -> str | None:
        """Why it was told to stop, once it was: "budget of 5.00 EUR reached", "stopped by ada@example.org", or the signal."""
        reason = self._stop.reason if self._halted else None
        if reason is None or not reason.startswith("SIG"):
            return reason
        try:
            told = (self._context.spool_dir / STOP_REASON).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            told = ""
        return told or reason

    @property
    def max_steps(self) -> int | None:
        """The step this training is meant to reach, once that is known."""
        return self._total

    @property
    def dir(self) -> Path:
        """The run directory; off the platform it is made with the first record."""
        return self._context.dir

    @property
    def output_dir(self) -> Path:
        """Checkpoints go here, and whatever else is to be kept."""
        return self._context.output_dir

    @property
    def checkpoint_at(self) -> float | None:
        """Unix time of the newest checkpoint of this process."""
        return self._spool.checkpoint_at

    @property
    def last_metrics(self) -> Mapping[str, float]:
        """Numbers of the last step; with a GPU possibly of the one before."""
        return self._last
