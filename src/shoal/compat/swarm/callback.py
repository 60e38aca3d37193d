"""NetMind's base class for Trainer callbacks of swarm peers: our Hugging Face callback, with the swarm's steps among its metrics."""

from __future__ import annotations

from typing import Any

from shoal.compat.swarm import membership
from shoal.integrations.hf import ShoalCallback


class HivemindTrainerCallback(ShoalCallback):
    """A subclass reports to the swarm and calls super(). The state comes from the peers, never from a checkpoint of this one."""

    def __init__(self, dht: Any, optimizer: Any, local_public_key: bytes, statistics_expiration: float) -> None:
        super().__init__(resume=False)
        self.dht, self.optimizer = dht, optimizer
        self.local_public_key, self.statistics_expiration = local_public_key, statistics_expiration
        self._round = -1
        membership.enter(dht)
        membership.enter(optimizer)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if news := membership.news(self.optimizer, since=self._round):
            self._round = int(news["swarm/step"])
            self.log_step(state, news)
        return super().on_step_end(args, state, control, **kwargs)
