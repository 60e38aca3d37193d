"""Snapshots of leases: list, look, remove."""

from __future__ import annotations

from shoal.core.snapshots import SnapshotView
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router
from shoal.server.services import snapshots

router = api_router("/workspaces/{workspace}/snapshots", tags=["machines"])


@router.get("")
def list_snapshots(ctx: Ctx, access: Viewer, lease: str | None = None) -> list[SnapshotView]:
    """Snapshots of the workspace or of one lease, newest first."""
    return snapshots.list_snapshots(ctx, access, lease)


@router.post("", status_code=202)
def ask(ctx: Ctx, access: Worker, lease: str) -> None:
    """Have one taken of a lease that runs; it is in the list within seconds."""
    snapshots.ask(ctx, access, lease)


@router.get("/{snapshot}")
def inspect(ctx: Ctx, access: Viewer, snapshot: str) -> SnapshotView:
    """One snapshot, by its id or by the name of its lease (the newest)."""
    return snapshots.get(ctx, access, snapshot)


@router.delete("/{snapshot}", status_code=204)
def delete(ctx: Ctx, access: Worker, snapshot: str) -> None:
    """Remove a snapshot before its time."""
    snapshots.delete(ctx, access, snapshot)
