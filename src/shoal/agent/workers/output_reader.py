"""Reads the output of a node's first worker, line by line: progress, and metrics of scripts that log none with the SDK."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from shoal.agent.node.preflight import is_preflight
from shoal.agent.wire import JoinReply
from shoal.agent.workers import runtime
from shoal.agent.workers.lines import Redactor
from shoal.agent.workers.log_metrics import HOLD_S, SWITCH, LogMetrics
from shoal.agent.workers.progress import ProgressReader


def wants_metrics(join: JoinReply) -> bool:
    """Return whether metrics are read off the output: only of scripts, and unless the job's environment says no."""
    return not is_preflight(join) and not runtime.is_session(join.entry) and join.env.get(SWITCH) != "0"


class OutputReader:
    """The capture thread calls `feed`; another thread calls `metrics`, and heartbeats `progress`."""

    def __init__(self, redact: Redactor, *, reads_metrics: bool):
        self._progress = ProgressReader()
        self._metrics = LogMetrics(self._last_step, redact) if reads_metrics else None

    def feed(self, line: bytes) -> None:
        now = time.time()
        self._progress.feed(line, now)
        if (metrics := self._metrics) is not None:
            metrics.feed(line, now)

    def progress(self) -> dict[str, Any] | None:
        return self._progress.report()

    def ship_metrics(self, ship: Callable[[list[bytes]], None], *, has_sdk: bool, last: bool = False) -> None:
        """Pass on the records read since the last call; stop reading for good if the script logs with the SDK."""
        if has_sdk:
            self._metrics = None
        elif self._metrics is not None:
            ship(self._metrics.pop_until(time.time() - (0.0 if last else HOLD_S)))

    def _last_step(self) -> int | None:
        found = self._progress.report()
        return None if found is None else int(found["step"])
