"""The queue: its order, why a job waits, what a job not yet submitted could expect, and workspaces' quotas."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from shoal.core.jobs import JobView
from shoal.core.queue import JobChange, JobWish, QueueView, QuotaSet, QuotaView, WhyView, WishView
from shoal.server.context import Ctx
from shoal.server.policy import Admin, Reader, Viewer, Worker
from shoal.server.routers import api_router
from shoal.server.services import queue, quotas

router = api_router(tags=["queue"])
Limit = Annotated[int, Query(ge=1, le=10_000)]


@router.get("/queue")
def show(ctx: Ctx, principal: Reader, limit: Limit = 100, starts: bool = False) -> QueueView:
    """Waiting jobs in their order; with `starts`, when each will likely start. Other people's have no names."""
    return queue.show(ctx, principal, limit=limit, starts=starts)


@router.get("/workspaces/{workspace}/jobs/{job}/why")
def why(ctx: Ctx, access: Viewer, job: str) -> WhyView:
    """Why a job waits, when it will likely start, and the cheapest change that would start it now."""
    return queue.why(ctx, access, job)


@router.patch("/workspaces/{workspace}/jobs/{job}")
def change(ctx: Ctx, access: Worker, job: str, request: JobChange) -> JobView:
    """Change the size, priority, limits or machines of a job that waits."""
    return queue.change(ctx, access, job, request)


@router.post("/workspaces/{workspace}/queue/simulate")
def simulate(ctx: Ctx, access: Viewer, wish: JobWish) -> WishView:
    """When a job would start if it were submitted now. Submits nothing."""
    return queue.simulate(ctx, access, wish)


@router.get("/admin/quotas")
def list_quotas(ctx: Ctx, _: Admin) -> list[QuotaView]:
    """What each workspace may use, and uses."""
    return quotas.list_quotas(ctx)


@router.patch("/admin/quotas/{target}")
def set_quota(ctx: Ctx, _: Admin, target: str, request: QuotaSet) -> QuotaView:
    """Set a workspace's quota of slots or its weight, by its id or (where only one is named so) its name."""
    return quotas.set_quota(ctx, target, request)
