"""The `htp` object, which a trainer of NetMind's swarm mode calls once per step; a thin wrapper of the run of `shoal.init`."""

from __future__ import annotations

import hashlib
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.compat.swarm import membership
from shoal.core.errors import UsageError
from shoal.sdk import library_loops, start

if TYPE_CHECKING:
    from shoal.sdk.run import Run


class TrainerPilot:
    """The object `htp`, one per process. It counts this peer's own steps; the swarm's step is a metric."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._optimizer: Any = None
        self._max_steps: int | None = None
        self._batch = 0
        self._round = -1

    def init(self, dht: Any, optimizer: Any, local_public_key: bytes, statistics_expiration: float = 600.0) -> None:
        """Start the run of this peer. `statistics_expiration` is ignored here: the callback writes the statistics."""
        if self._run is not None:
            return
        self._optimizer = optimizer
        membership.enter(dht)
        membership.enter(optimizer)
        self._run = start.current() or start.init(parallel="none", resume="never", checkpoint_every_s=None)
        shuffle_apart(local_public_key)

    def set_max_steps(self, max_steps: int) -> None:
        """Set the number of this peer's steps after which `on_step_end` returns True."""
        self._max_steps = int(max_steps)
        library_loops.aim(self._ready(), total=self._max_steps)

    def set_total_train_batch_size(self, samples: int) -> None:
        """Set the samples per step, for the statistics."""
        self._batch = int(samples)

    def on_step_begin(self) -> None:
        """Check that the run has started. Scripts call this once per step or once per epoch; nothing else depends on it."""
        self._ready()

    def on_step_end(self, metrics: dict[str, Any] | None = None) -> bool:
        """Count one step with its metrics (numbers); return True if the script should shut down the optimizer and stop."""
        run = self._ready()
        run.step({**(metrics or {}), **self._swarm_metrics()})
        return run.should_stop or (self._max_steps is not None and run.global_step >= self._max_steps)

    def log(self, metrics: dict[str, Any]) -> None:
        """Record the metrics of an evaluation at the current step: numbers and strings."""
        self._ready().evaluate(metrics)

    def on_train_end(self) -> None:
        """Leave the swarm and end the run. A second call has no effect; the end of the process does the same."""
        run, self._run = self._run, None
        if run is not None:
            membership.leave()
            run.finish()

    def _swarm_metrics(self) -> dict[str, float]:
        """Return the swarm's metrics, once per round."""
        metrics = membership.metrics(self._optimizer, since=self._round)
        if metrics:
            self._round = int(metrics["swarm/step"])
            if self._batch and self._run is not None:
                metrics["samples"] = (self._run.global_step + 1) * self._batch
        return metrics

    def _ready(self) -> Run:
        if self._run is None:
            raise UsageError(
                "this peer is not in a swarm", hint="call htp.init(dht, optimizer, local_public_key, …) first"
            )
        return self._run


def shuffle_apart(local_public_key: bytes) -> None:
    """Seed torch differently on each peer. Peers start from one seed for equal models, but must shuffle differently."""
    import_module("torch").manual_seed(int.from_bytes(hashlib.sha256(local_public_key).digest()[:7], "big"))
