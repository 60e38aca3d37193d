"""Progress of the swarm in the current round: hivemind's tracker with fewer reports and a membership check.

Anyone who can reach the network can write the numbers hivemind counts. Reports of non-members are therefore ignored, and an
epoch counts only when a quorum has reached it.
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
"""Time between two reports as a share of the round's time so far. Meanwhile the others extrapolate from a peer's speed."""


class Tracker(_tracking.ProgressTracker):  # type: ignore[misc]
    """hivemind's progress tracker, limited to members."""

    admitted: Callable[[], Collection[str] | None] = staticmethod(lambda: None)
    """Function that returns the p2p ids whose reports count; None: all."""

    def __init__(self, dht: Any, settings: Settings):
        self._began_at: float | None = None
        self._reported_at = 0.0
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

    def report(self, epoch: int, samples: int) -> None:
        """Report this peer's samples, less and less often in a long round, and once more when the round may be full.

        A report at every step would flood the network.
        """
        now = time.monotonic()
        self._began_at = now if self._began_at is None else self._began_at
        every_s = min(max(self._least_s, _SHARE * (now - self._began_at)), self._most_s)
        if now - self._reported_at >= every_s or samples >= self.target_batch_size:
            self._reported_at = now
            self.report_local_progress(epoch, samples)

    def begin(self, epoch: int, samples: int) -> None:
        """Begin a round of `samples` samples."""
        self.target_batch_size = samples
        self._began_at = None
        self.update_epoch(epoch)

    def _parse_swarm_progress_data(self, metadata: Any) -> Any:
        if not isinstance(metadata, dict):
            return super()._parse_swarm_progress_data(metadata)
        own, admitted = self.dht.peer_id.to_bytes(), self.admitted()
        reports = {key: item for key, item in metadata.items() if isinstance(item.value, dict)}
        if admitted is not None:
            reports = {
                k: v for k, v in reports.items() if (p := v.value["peer_id"]) == own or str(_p2p.PeerID(p)) in admitted
            }
        if reports:
            epochs = sorted((item.value["epoch"] for item in reports.values()), reverse=True)
            newest = epochs[quorum(len(epochs)) - 1]
            reports = {k: v for k, v in reports.items() if v.value["epoch"] <= newest or v.value["peer_id"] == own}
        return super()._parse_swarm_progress_data(reports)
