"""Read-only properties of a run: rank, device, directories, progress."""

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


class RunInfo:
    """Base class of Run with its read-only properties."""

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
        """Name of the run."""
        return self._context.name

    @property
    def rank(self) -> int:
        """Rank of this worker among all workers, from 0."""
        return self._context.rank

    @property
    def local_rank(self) -> int:
        """Rank of this worker among those of its machine, from 0."""
        return self._context.local_rank

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return self._context.world_size

    @property
    def is_main(self) -> bool:
        """True on rank 0."""
        return self._main

    @property
    def device(self) -> torch.device:
        """Device this worker trains on."""
        if self._device is None:
            from shoal.sdk.device import choose_device

            alone = self._context.world_size == 1
            self._device = choose_device(self._context.local_rank, self._options.device, alone=alone)
        return self._device

    @property
    def swarm(self) -> Any:
        """Swarm this peer takes part in (`round`, `global_step`, `num_peers`), or None."""
        return getattr(self._training.parallel, "swarm", None) if self._training is not None else None

    @property
    def global_step(self) -> int:
        """Number of optimizer steps done, over all attempts."""
        return self._step

    @property
    def epoch(self) -> float | None:
        """Number of epochs done, with the fraction of the current one; None while unknown."""
        known = self._training.epoch if self._training is not None else None
        return known if known is not None else self._epoch

    @property
    def start_epoch(self) -> int:
        """Number of epochs finished before this process started.

        Example::

            for epoch in range(run.start_epoch, 10):
                ...
        """
        return self._training.start_epoch if self._training is not None else 0

    @property
    def resumed(self) -> bool:
        """True if this process resumed from a checkpoint."""
        return self._training is not None and self._training.resumed

    @property
    def is_boundary(self) -> bool:
        """True if the current iteration completes a global step; the others only add to its gradient."""
        return self._training is None or self._training.is_boundary

    @property
    def batch_samples(self) -> int | None:
        """Number of samples of the current batch that count on this worker; None if Shoal does not order the loader."""
        return None if self._training is None else self._training.batch_samples

    @property
    def parallel(self) -> Parallel:
        """Kind of parallelism: how the model is spread over the workers, and which share of the data this one reads."""
        return self._ready().parallel

    @property
    def session(self) -> str:
        """Random identifier of this attempt, the same on every worker."""
        return self._ready().session

    def _ready(self) -> Training:
        if self._training is None:
            raise UsageError("nothing is prepared yet", hint="call run.prepare(model, optimizer, …) first")
        return self._training

    @property
    def should_stop(self) -> bool:
        """True when the script must leave its loop: the run was told to stop, or max_steps are done.

        It becomes true at the same step on every rank. The checkpoint is saved automatically.

        Example::

            for batch in loader:
                run.step(loss=train_on(batch))
                if run.should_stop:
                    break
        """
        return self._halted or (self._options.max_steps is not None and self._step >= self._options.max_steps)

    @property
    def stop_reason(self) -> str | None:
        """Reason of the stop, or None: "budget of 5.00 EUR reached", "stopped by ada@example.org", or a signal's name."""
        reason = self._stop.reason if self._halted else None
        if reason is None or not reason.startswith("SIG"):
            return reason
        try:
            from_agent = (self._context.spool_dir / STOP_REASON).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            from_agent = ""
        return from_agent or reason

    @property
    def max_steps(self) -> int | None:
        """Global step at which the training is complete; None while unknown."""
        return self._total

    @property
    def dir(self) -> Path:
        """Run directory. Outside the platform it is created with the first record."""
        return self._context.dir

    @property
    def output_dir(self) -> Path:
        """Directory for checkpoints and for other files that should be kept."""
        return self._context.output_dir

    @property
    def checkpoint_at(self) -> float | None:
        """Unix time of the newest checkpoint of this process."""
        return self._spool.checkpoint_at

    @property
    def last_metrics(self) -> Mapping[str, float]:
        """Metrics of the last step; with a GPU possibly those of an earlier step."""
        return self._last
