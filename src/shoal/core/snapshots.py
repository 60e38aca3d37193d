"""Snapshots on the wire: what was on a lease's volume when it ended, to be put back on any machine."""

from __future__ import annotations

from pydantic import Field

from shoal.core.artifacts import Manifest
from shoal.core.schema import Schema, Utc, View

RESTORE = "/snapshot"
"""Where an agent finds one that it is to put back, among what its job mounts."""


class SnapshotCommit(Schema):
    manifest: Manifest
    """tree.json and the files it speaks of: see shoal.agent.snapshot."""
    skipped: list[str] = Field(default=[], max_length=100)
    """What could not be taken along, a line each."""


class SnapshotView(View):
    id: str
    lease: str
    """Name of the lease it was taken from."""
    machine: str | None
    tree_hash: str
    """Equal for equal trees: contents, names, links, modes and times."""
    size: int
    files: int
    skipped: list[str]
    created_by: str
    created_at: Utc
    expires_at: Utc
    """Kept until then."""


class SnapshotCommitted(View):
    missing: list[str] = []
    snapshot: SnapshotView | None = None
