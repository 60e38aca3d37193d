"""What is known of the keepers of swarms while the server runs; truth is in the database and in the processes."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from shoal.core.swarm_views import KeeperState


@dataclass(slots=True)
class KeeperStatus:
    state: KeeperState = "off"
    pid: int | None = None
    restarts: int = 0
    """Since the server started."""
    problem: str | None = None


class Keepers:
    """`wake` is set by whoever has changed something that a keeper must hear of."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self._status: dict[str, KeeperStatus] = {}

    def status(self, swarm_id: str) -> KeeperStatus:
        return self._status.setdefault(swarm_id, KeeperStatus())

    def forget(self, swarm_id: str) -> None:
        self._status.pop(swarm_id, None)
