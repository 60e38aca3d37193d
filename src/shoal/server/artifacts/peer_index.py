"""Index of nodes that serve data to other nodes, by manifest.

In memory: after a restart of the server, nodes that join fill it again.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

Place = tuple[str, int]
"""Attempt id and node index."""
_KEPT = 10_000
"""Most nodes kept. Ended ones are removed when their data is requested; beyond this number the oldest are."""


class PeerIndex:
    """Addresses of serving nodes, and the manifests each attempt mounts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: dict[Place, str] = {}
        self._has: dict[str, tuple[str, frozenset[str]]] = {}

    def listens(self, attempt_id: str, node: int, at: str) -> None:
        with self._lock:
            self._at[attempt_id, node] = at
            while len(self._at) > _KEPT:
                del self._at[next(iter(self._at))]

    def mounts(self, attempt_id: str, workspace_id: str, manifest_ids: Collection[str]) -> None:
        """Record the manifests that the nodes of an attempt will have once they run."""
        with self._lock:
            self._has[attempt_id] = (workspace_id, frozenset(manifest_ids))

    def at(self, attempt_id: str, node: int) -> str | None:
        return self._at.get((attempt_id, node))

    def gang(self, attempt_id: str) -> list[str]:
        with self._lock:
            return sorted(at for (attempt, _), at in self._at.items() if attempt == attempt_id)

    def others(self, attempt_id: str, workspace_id: str, manifest_id: str) -> dict[Place, str]:
        """Return the nodes of other attempts in this workspace that have a manifest's data, or will have it."""
        with self._lock:
            found = {a for a, (w, has) in self._has.items() if w == workspace_id and manifest_id in has} - {attempt_id}
            return {place: at for place, at in self._at.items() if place[0] in found}

    def forget(self, places: Collection[Place]) -> None:
        with self._lock:
            for place in places:
                self._at.pop(place, None)
            left = {attempt_id for attempt_id, _ in self._at}
            self._has = {attempt_id: has for attempt_id, has in self._has.items() if attempt_id in left}
