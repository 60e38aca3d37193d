"""`htp`: what a trainer of NetMind's swarm mode calls once per step. Every method is a few lines on `shoal.init`'s run."""

from __future__ import annotations

import hashlib
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.compat.swarm import membership
from shoal.core.errors import UsageError
from shoal.sdk import adapt, start

if TYPE_CHECKING:
    from shoal.sdk.run import Run


class TrainerPilot:
    """One per process, called `htp`. Steps are this peer's own; the swarm's are told as a metric."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._optimizer: Any = None
        self._max_steps: int | None = None
        self._batch = 0
        self._round = -1

    def init(self, dht: Any, optimizer: Any, local_public_key: bytes, statistics_expiration: float = 600.0) -> None:
        """Start the run of this peer. `statistics_expiration` is taken and left to the callback, which writes the statistics."""
        if self._run is not None:
            return
        self._optimizer = optimizer
        membership.enter(dht)
        membership.enter(optimizer)
        self._run = start.current() or start.init(parallel="none", resume="never", checkpoint_every_s=None)
        shuffle_apart(local_public_key)

    def set_max_steps(self, max_steps: int) -> None:
        """Steps of this peer after which `on_step_end` says to stop."""
        self._max_steps = int(max_steps)
        adapt.aim(self._ready(), total=self._max_steps)

    def set_total_train_batch_size(self, samples: int) -> None:
        """Samples of one step, to count them."""
        self._batch = int(samples)

    def on_step_begin(self) -> None:
        """Scripts call it once per step or once per epoch; nothing hangs on it."""
        self._ready()

    def on_step_end(self, metrics: dict[str, Any] | None = None) -> bool:
        """Count one step and its metrics (numbers). True: shut the optimizer down and leave."""
        run = self._ready()
        run.step({**(metrics or {}), **self._news()})
        return run.should_stop or (self._max_steps is not None and run.global_step >= self._max_steps)

    def log(self, metrics: dict[str, Any]) -> None:
        """Metrics of an evaluation at the present step: numbers and strings."""
        self._ready().evaluate(metrics)

    def on_train_end(self) -> None:
        """Leave the swarm and end the run. Calling it again does nothing, nor need it be called: leaving does the same."""
        run, self._run = self._run, None
        if run is not None:
            membership.leave()
            run.finish()

    def _news(self) -> dict[str, float]:
        """Of the swarm, once per round."""
        news = membership.news(self._optimizer, since=self._round)
        if news:
            self._round = int(news["swarm/step"])
            if self._batch and self._run is not None:
                news["samples"] = (self._run.global_step + 1) * self._batch
        return news

    def _ready(self) -> Run:
        if self._run is None:
            raise UsageError(
                "this peer is not in a swarm", hint="htp.init(dht, optimizer, local_public_key, …) comes first"
            )
        return self._run


def shuffle_apart(local_public_key: bytes) -> None:
    """Peers start from one seed, so that their models are equal; from here on each draws an order of its own."""
    import_module("torch").manual_seed(int.from_bytes(hashlib.sha256(local_public_key).digest()[:7], "big"))
