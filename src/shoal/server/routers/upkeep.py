"""Maintenance of the store, for admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from shoal.core.artifacts import CheckView, GcView, StoreUsageView
from shoal.server.artifacts import upkeep
from shoal.server.context import Ctx
from shoal.server.policy import Admin
from shoal.server.routers import api_router

router = api_router("/store", tags=["upkeep"])
Grace = Annotated[float, Query(ge=0, le=100 * 365 * 86_400)]


@router.post("/gc")
def gc(ctx: Ctx, _: Admin, grace_s: Grace = 86_400.0, dry_run: bool = False) -> GcView:
    """Delete sources, manifests and chunks that nothing refers to and that are older than `grace_s`. With `dry_run`, only
    report what would be deleted."""
    return upkeep.gc(ctx, grace_s=grace_s, dry_run=dry_run)


@router.post("/check")
def check(ctx: Ctx, _: Admin, quarantine: bool = False) -> CheckView:
    """Read and verify every chunk. `quarantine` moves damaged ones aside, so that a new upload can replace them."""
    return upkeep.check(ctx, quarantine=quarantine)


@router.get("/usage")
def usage(ctx: Ctx, _: Admin) -> StoreUsageView:
    """Return the size of the store, and its size without deduplication and compression."""
    return upkeep.usage(ctx)
