"""Stalls of the agents' machines, as their agents report them: silence that a machine caused itself counts against no node.

A stalled agent cannot say so before it is over. So a node whose machine has stood still lately gets more time before its silence
counts as its end: as long as three such stalls, at most its usual timeout once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_LATELY_S = 600.0
_STALLS = 3.0
_REPORTED_S = 5.0
"""Length of a stall that is reported in the job's events; at most one in `_LATELY_S` is."""


@dataclass(slots=True)
class _Node:
    total_s: float
    longest_s: float = 0.0
    """Longest stall of those not longer ago than `_LATELY_S`."""
    at: float = float("-inf")
    reported_at: float = float("-inf")


class MachineLag:
    """Known stalls of running nodes. Each node's record has one writer: the request of its heartbeat."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._nodes: dict[tuple[str, int], _Node] = {}

    def update(self, attempt_id: str, node: int, total_s: float) -> tuple[float, str | None]:
        """Record the sum of an agent's stalls.

        Return the length of the newest one, 0 if there is none, and a line for people if it is worth one. After a restart of
        the server the first report only sets where counting begins.
        """
        known = self._nodes.get((attempt_id, node))
        if known is None:
            self._nodes[attempt_id, node] = _Node(total_s)
            return 0.0, None
        stalled_s, known.total_s = max(0.0, total_s - known.total_s), total_s
        if not stalled_s:
            return 0.0, None
        now = self._clock()
        is_recent = now - known.at <= _LATELY_S
        known.longest_s, known.at = max(stalled_s, known.longest_s if is_recent else 0.0), now
        if stalled_s < _REPORTED_S or now - known.reported_at <= _LATELY_S:
            return stalled_s, None
        known.reported_at = now
        text = f"the machine of node {node} stood still for {stalled_s:.0f} s (overloaded or suspended); this is not counted against it"
        return stalled_s, text

    def allowance_s(self, attempt_id: str, node: int, timeout_s: float) -> float:
        """Return the seconds by which a node's timeout is extended."""
        known = self._nodes.get((attempt_id, node))
        if known is None or self._clock() - known.at > _LATELY_S:
            return 0.0
        return min(timeout_s, _STALLS * known.longest_s)

    def forget(self, attempt_id: str, node: int) -> None:
        self._nodes.pop((attempt_id, node), None)
