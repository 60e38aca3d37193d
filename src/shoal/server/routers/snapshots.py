"""Snapshots of leases: list, take, inspect, delete."""

from __future__ import annotations

from shoal.core.snapshots import SnapshotView
from shoal.server.context import Ctx
from shoal.server.leases import snapshots
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router

router = api_router("/workspaces/{workspace}/snapshots", tags=["machines"])


@router.get("")
def list_snapshots(ctx: Ctx, access: Viewer, lease: str | None = None) -> list[SnapshotView]:
    """List the snapshots of the workspace or of one lease, newest first."""
    return snapshots.list_snapshots(ctx, access, lease)


@router.post("", status_code=202)
def request(ctx: Ctx, access: Worker, lease: str) -> None:
    """Request a snapshot of a running lease. It appears in the list within seconds."""
    snapshots.request(ctx, access, lease)


@router.get("/{snapshot}")
def inspect(ctx: Ctx, access: Viewer, snapshot: str) -> SnapshotView:
    """Return one snapshot, by its id or by the name of its lease (then the newest)."""
    return snapshots.get(ctx, access, snapshot)


@router.delete("/{snapshot}", status_code=204)
def delete(ctx: Ctx, access: Worker, snapshot: str) -> None:
    """Delete a snapshot before it expires."""
    snapshots.delete(ctx, access, snapshot)
