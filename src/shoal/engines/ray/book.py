"""The gateway's book: how each agent and machine is, with a version that whoever wants to hear of changes waits for."""

from __future__ import annotations

import threading
import time
from typing import Any

STARTING, ALIVE, GONE = "starting", "alive", "gone"
_FAILURES = 100
"""How many are remembered; whoever asked hears of it within a second."""


class Book:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0
        self._agents: dict[str, dict[int, str]] = {}
        self._failed: dict[str, str] = {}
        self._machines: list[str] | None = None

    def begin(self, attempt_id: str, nodes: list[int]) -> bool:
        """False if it is there already."""
        with self._changed:
            if attempt_id in self._agents or attempt_id in self._failed:
                return False
            self._agents[attempt_id] = dict.fromkeys(nodes, STARTING)
            self._tell()
            return True

    def alive(self, attempt_id: str, node: int) -> None:
        """One nobody here began was begun by an earlier gateway; one that is gone stays gone."""
        with self._changed:
            nodes = self._agents.setdefault(attempt_id, {})
            if nodes.get(node, STARTING) == STARTING:
                nodes[node] = ALIVE
                self._tell()

    def gone(self, attempt_id: str, node: int) -> None:
        with self._changed:
            nodes = self._agents.get(attempt_id, {})
            if nodes.get(node, GONE) != GONE:
                nodes[node] = GONE
                self._tell()

    def fail(self, attempt_id: str, reason: str) -> None:
        """It could not be started, and nothing of it runs."""
        with self._changed:
            self._agents.pop(attempt_id, None)
            self._failed[attempt_id] = reason
            for old in list(self._failed)[:-_FAILURES]:
                del self._failed[old]
            self._tell()

    def forget(self, attempt_id: str) -> None:
        """All of it has ended; whoever knows that it was started, knows that too."""
        with self._changed:
            self._agents.pop(attempt_id, None)
            self._failed.pop(attempt_id, None)
            self._tell()

    def set_machines(self, names: list[str]) -> None:
        with self._changed:
            if names != self._machines:
                self._machines = names
                self._tell()

    @property
    def machines(self) -> list[str]:
        with self._changed:
            return list(self._machines or [])

    def is_over(self, attempt_id: str) -> bool:
        """It is here, and all its nodes are gone."""
        with self._changed:
            states = self._agents.get(attempt_id, {}).values()
            return bool(states) and all(state == GONE for state in states)

    @property
    def version(self) -> int:
        with self._changed:
            return self._version

    @property
    def attempts(self) -> set[str]:
        with self._changed:
            return set(self._agents)

    def wait(self, after: int, wait_s: float) -> dict[str, Any]:
        """All of it, as soon as it is newer than `after`, or when the time is up."""
        deadline = time.monotonic() + wait_s
        with self._changed:
            while self._version == after and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return {
                "version": self._version,
                "agents": {a: {str(n): s for n, s in nodes.items()} for a, nodes in self._agents.items()},
                "failed": dict(self._failed),
                "machines": self._machines,
            }

    def _tell(self) -> None:
        self._version += 1
        self._changed.notify_all()
