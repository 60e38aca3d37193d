"""Snapshots on the wire: the saved content of a lease's volume, which can be restored on any machine."""

from __future__ import annotations

from pydantic import Field

from shoal.core.artifacts import Manifest
from shoal.core.schema import Schema, Utc, View

RESTORE = "/snapshot"
"""Path among the mounts of a lease's job at which its agent finds the snapshot to restore."""


class SnapshotCommit(Schema):
    """An agent's snapshot of a lease's volume."""

    manifest: Manifest
    """Manifest of tree.json and the files it refers to: see shoal.agent.lease.snapshot."""
    skipped: list[str] = Field(default=[], max_length=100)
    """Files that could not be saved, one line each."""


class SnapshotView(View):
    """A snapshot of a lease's volume."""

    id: str
    lease: str
    """Name of the lease it was taken from."""
    machine: str | None
    tree_hash: str
    """Hash of the tree, equal for trees with equal contents, names, links, modes and times."""
    size: int
    files: int
    skipped: list[str]
    """Files that could not be saved, one line each."""
    created_by: str
    created_at: Utc
    expires_at: Utc
    """Time until which it is kept."""


class SnapshotCommitted(View):
    """The answer to a commit: missing chunks, or the snapshot."""

    missing: list[str] = []
    """Chunks the server does not have yet. While this list is not empty, nothing is committed: upload them and commit again."""
    snapshot: SnapshotView | None = None
