"""Upkeep of the store, for admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from shoal.core.artifacts import CheckView, GcView, StoreUsageView
from shoal.server.context import Ctx
from shoal.server.policy import Admin
from shoal.server.routers import api_router
from shoal.server.services import upkeep

router = api_router("/store", tags=["upkeep"])
Grace = Annotated[float, Query(ge=0, le=100 * 365 * 86_400)]


@router.post("/gc")
def gc(ctx: Ctx, _: Admin, grace_s: Grace = 86_400.0, dry_run: bool = False) -> GcView:
    """Remove what nothing refers to and is older than the grace."""
    return upkeep.gc(ctx, grace_s=grace_s, dry_run=dry_run)


@router.post("/check")
def check(ctx: Ctx, _: Admin, quarantine: bool = False) -> CheckView:
    """Read and verify every chunk; `quarantine` sets damaged ones aside so that a new push heals them."""
    return upkeep.check(ctx, quarantine=quarantine)


@router.get("/usage")
def usage(ctx: Ctx, _: Admin) -> StoreUsageView:
    """What the store takes, and what it would take without sharing and compression."""
    return upkeep.usage(ctx)
