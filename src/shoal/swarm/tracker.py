"""How far the swarm is in the present round: hivemind's tracker, told as often as is good for the network, and not by all.

Whoever can reach the network can write what hivemind counts, so strangers are left out, and nobody runs ahead alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

from shoal.swarm.agreement import quorum
from shoal.swarm.settings import Settings, round_samples

_tracking: Any = import_module("hivemind.optim.progress_tracker")
_p2p: Any = import_module("hivemind.p2p")

_SHARE = 1 / 8
"""Share of a round's time between two words about it: others reckon with a peer's speed meanwhile."""


class Tracker(_tracking.ProgressTracker):  # type: ignore[misc]
    admitted: Callable[[], Collection[str] | None] = staticmethod(lambda: None)
    """p2p ids whose word counts; None: everybody's."""

    def __init__(self, dht: Any, settings: Settings):
        self._began_at: float | None = None
        self._told_at = 0.0
        self._least_s, self._most_s = settings.refresh_s, settings.expiry_s / 4
        super().__init__(
            dht,
            settings.run_id,
            round_samples(0, settings),
            client_mode=settings.client_mode,
            min_refresh_period=settings.refresh_s,
            max_refresh_period=max(settings.refresh_s, min(10.0, settings.expiry_s / 4)),
            default_refresh_period=settings.refresh_s,
            metadata_expiration=settings.expiry_s,
            start=True,
        )

    def tell(self, epoch: int, samples: int) -> None:
        """Ever more seldom in a long round, and once more when it may be full: every step would flood the network."""
        now = time.monotonic()
        self._began_at = now if self._began_at is None else self._began_at
        every_s = min(max(self._least_s, _SHARE * (now - self._began_at)), self._most_s)
        if now - self._told_at >= every_s or samples >= self.target_batch_size:
            self._told_at = now
            self.report_local_progress(epoch, samples)

    def begin(self, epoch: int, samples: int) -> None:
        """A round of so many samples."""
        self.target_batch_size = samples
        self._began_at = None
        self.update_epoch(epoch)

    def _parse_swarm_progress_data(self, metadata: Any) -> Any:
        if not isinstance(metadata, dict):
            return super()._parse_swarm_progress_data(metadata)
        own, admitted = self.dht.peer_id.to_bytes(), self.admitted()
        told = {key: item for key, item in metadata.items() if isinstance(item.value, dict)}
        if admitted is not None:
            told = {
                k: v for k, v in told.items() if (p := v.value["peer_id"]) == own or str(_p2p.PeerID(p)) in admitted
            }
        if told:
            epochs = sorted((item.value["epoch"] for item in told.values()), reverse=True)
            newest = epochs[quorum(len(epochs)) - 1]
            told = {k: v for k, v in told.items() if v.value["epoch"] <= newest or v.value["peer_id"] == own}
        return super()._parse_swarm_progress_data(told)
