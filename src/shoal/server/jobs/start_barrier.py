"""Memory of which nodes of a gang are prepared, and of the port at which their workers will meet.

It is kept in memory only: agents that wait announce themselves again after a restart of the server, and those that were told
to start report that they run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_FORGET_S = 3600.0
"""Waiting agents announce themselves every second; an attempt that is silent for so long is over."""


class StartBarrier:
    """Prepared nodes and meeting port of each attempt that is about to start. One lock guards both."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._nodes: dict[str, set[int]] = {}
        self._ports: dict[str, int] = {}
        self._seen: dict[str, float] = {}

    def arrive(self, attempt_id: str, node: int) -> set[int]:
        """Record that a node is prepared; return all prepared nodes of its attempt."""
        now = self._clock()
        with self._lock:
            for old in [known for known, at in self._seen.items() if now - at > _FORGET_S]:
                self._nodes.pop(old, None)
                self._ports.pop(old, None)
                del self._seen[old]
            self._seen[attempt_id] = now
            nodes = self._nodes.setdefault(attempt_id, set())
            nodes.add(node)
            return set(nodes)

    def port(self, attempt_id: str) -> int | None:
        with self._lock:
            return self._ports.get(attempt_id)

    def set_port(self, attempt_id: str, port: int) -> int:
        """Set the meeting port unless one is set; return the one that counts."""
        with self._lock:
            return self._ports.setdefault(attempt_id, port)
