"""The driver's state of all agents and machines, with a version number so that callers can wait for changes."""

from __future__ import annotations

import threading
import time
from typing import Any

STARTING, ALIVE, GONE = "starting", "alive", "gone"
_FAILURES = 100
"""Most failures remembered; the server receives them within a second."""


class ClusterState:
    """Thread-safe state of agents and machines. `_changed` guards everything; each change increases the version."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0
        self._agents: dict[str, dict[int, str]] = {}
        self._failed: dict[str, str] = {}
        self._machines: list[str] | None = None
        self._devices: dict[str, Any] = {}
        self._full: dict[str, str] = {}

    def begin(self, attempt_id: str, nodes: list[int]) -> bool:
        """Add an attempt whose agents are being started; return False if it is known already."""
        with self._changed:
            if attempt_id in self._agents or attempt_id in self._failed:
                return False
            self._agents[attempt_id] = dict.fromkeys(nodes, STARTING)
            self._notify()
            return True

    def alive(self, attempt_id: str, node: int) -> None:
        """Mark an agent as running. An unknown one was started by an earlier driver; one that has ended stays so."""
        with self._changed:
            nodes = self._agents.setdefault(attempt_id, {})
            if nodes.get(node, STARTING) == STARTING:
                nodes[node] = ALIVE
                self._notify()

    def gone(self, attempt_id: str, node: int) -> None:
        with self._changed:
            nodes = self._agents.get(attempt_id, {})
            if nodes.get(node, GONE) != GONE:
                nodes[node] = GONE
                self._notify()

    def fail(self, attempt_id: str, reason: str) -> None:
        """Record that an attempt could not be started and that nothing of it runs."""
        with self._changed:
            self._agents.pop(attempt_id, None)
            self._failed[attempt_id] = reason
            for old in list(self._failed)[:-_FAILURES]:
                del self._failed[old]
            self._notify()

    def forget(self, attempt_id: str) -> None:
        """Remove an attempt of which everything has ended; a started attempt that is missing here counts as ended."""
        with self._changed:
            self._agents.pop(attempt_id, None)
            self._failed.pop(attempt_id, None)
            self._notify()

    def set_machines(self, names: list[str]) -> None:
        with self._changed:
            if names != self._machines:
                self._machines = names
                self._notify()

    def set_devices(self, machine: str, devices: Any) -> None:
        """Record the inventory of a machine as it read it."""
        with self._changed:
            if self._devices.get(machine) != devices:
                self._devices[machine] = devices
                self._notify()

    def set_full(self, machine: str, why: str) -> None:
        """Record why no agent can start on the disk of a machine; empty if it has room."""
        with self._changed:
            if self._full.get(machine, "") != why:
                self._full[machine] = why
                self._notify()

    @property
    def machines(self) -> list[str]:
        with self._changed:
            return list(self._machines or [])

    def is_over(self, attempt_id: str) -> bool:
        """Return whether an attempt is known and all its agents have ended."""
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
        """Return the whole state as soon as its version differs from `after`, or after `wait_s` seconds."""
        deadline = time.monotonic() + wait_s
        with self._changed:
            while self._version == after and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return {
                "version": self._version,
                "agents": {a: {str(n): s for n, s in nodes.items()} for a, nodes in self._agents.items()},
                "failed": dict(self._failed),
                "machines": self._machines,
                "devices": dict(self._devices),
                "full": {machine: why for machine, why in self._full.items() if why},
            }

    def _notify(self) -> None:
        self._version += 1
        self._changed.notify_all()
