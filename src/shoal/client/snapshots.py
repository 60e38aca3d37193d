"""Snapshots of leases."""

from __future__ import annotations

from shoal.client._http import segment
from shoal.client._noun import WorkspaceNoun
from shoal.core.snapshots import SnapshotView


class Snapshots(WorkspaceNoun):
    def list(self, lease: str | None = None) -> list[SnapshotView]:
        """List snapshots, newest first."""
        return self._http.fetch(list[SnapshotView], self._path("snapshots"), lease=lease)

    def request(self, lease: str) -> None:
        """Request a snapshot of a running lease. It appears in the list when it is complete."""
        self._http.send("POST", self._path("snapshots"), params={"lease": lease})

    def get(self, snapshot: str) -> SnapshotView:
        """Return a snapshot by its id, or the newest of the lease with that name."""
        return self._http.fetch(SnapshotView, self._path("snapshots", segment(snapshot)))

    def delete(self, snapshot: str) -> None:
        self._http.send("DELETE", self._path("snapshots", segment(snapshot)))
