"""Status of the swarm coordinators while the server runs, for display only.

Why this needs no lock: the thread of `SwarmWatch` is the only one that changes a `CoordinatorStatus`; request threads read it,
call `forget` after a swarm was deleted, and set `wake`, which is an Event. Every access to `_status` is a single dict
operation. A reader may see the new state together with the old pid for a moment. Nothing here is stored: what matters is in
the database and in the coordinator's folder, and after a crash of the server `SwarmWatch` finds running coordinators again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from shoal.core.swarm_views import CoordinatorState


@dataclass(slots=True)
class CoordinatorStatus:
    """Last known status of one swarm's coordinator."""

    state: CoordinatorState = "off"
    pid: int | None = None
    restarts: int = 0
    """Number of restarts since the server started."""
    problem: str | None = None


class Coordinators:
    """Status of all coordinators. Set `wake` after a change that a coordinator must be told about."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self._status: dict[str, CoordinatorStatus] = {}

    def status(self, swarm_id: str) -> CoordinatorStatus:
        return self._status.setdefault(swarm_id, CoordinatorStatus())

    def forget(self, swarm_id: str) -> None:
        self._status.pop(swarm_id, None)
