"""NetMind's base class for Trainer callbacks of swarm peers: Shoal's Hugging Face callback with the swarm's metrics."""

from __future__ import annotations

from typing import Any

from shoal.compat.swarm import membership
from shoal.integrations.hf import ShoalCallback


class HivemindTrainerCallback(ShoalCallback):
    """Base callback. A subclass reports to the swarm and calls super(). The state comes from peers, never from a checkpoint."""

    def __init__(self, dht: Any, optimizer: Any, local_public_key: bytes, statistics_expiration: float) -> None:
        super().__init__(resume=False)
        self.dht, self.optimizer = dht, optimizer
        self.local_public_key, self.statistics_expiration = local_public_key, statistics_expiration
        self._round = -1
        membership.enter(dht)
        membership.enter(optimizer)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if metrics := membership.metrics(self.optimizer, since=self._round):
            self._round = int(metrics["swarm/step"])
            self.log_step(state, metrics)
        return super().on_step_end(args, state, control, **kwargs)
