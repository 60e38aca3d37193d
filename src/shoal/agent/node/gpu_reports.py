"""Reports the gauges of a node's GPUs with the heartbeats, and says in the log which GPUs the job hardly uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shoal.agent.devices.idle import UseWatch

if TYPE_CHECKING:
    from shoal.agent.devices.gauges import Gauge
    from shoal.agent.node.heartbeat import Beats


class GpuReports:
    """Called with each reading. One thread calls it, so it needs no lock."""

    def __init__(
        self,
        beats: Beats,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ):
        self._beats, self._say, self._clock = beats, say, clock
        self._began_at = now()
        self._watch = UseWatch()
        self._notices: list[str] = []

    def __call__(self, gauges: Sequence[Gauge]) -> None:
        if not gauges:
            return
        self._beats.add_once(gpus=[self._without_old_report(gauge) for gauge in gauges])
        if new := self._watch.notices(gauges, self._clock()):
            for text in new:
                self._say(f"[shoal] {text}")
            self._notices += new
            self._beats.update(notices=list(self._notices))

    def _without_old_report(self, gauge: Gauge) -> Gauge:
        """Return a gauge without an error report of the driver that came before this job: it was about another."""
        is_old = gauge.get("xid_at", 0.0) < self._began_at
        return {key: value for key, value in gauge.items() if key != "xid_at" and not (key == "xid" and is_old)}
