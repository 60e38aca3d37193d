"""The queue: its order, why a job waits, start estimates for new jobs, and quotas of workspaces."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from shoal.core.jobs import JobView
from shoal.core.queue import JobChange, QueueView, QuotaSet, QuotaView, StartEstimateRequest, StartEstimateView, WhyView
from shoal.server.context import Ctx
from shoal.server.policy import Admin, Reader, Viewer, Worker
from shoal.server.queue import quotas
from shoal.server.queue import service as queue
from shoal.server.routers import api_router

router = api_router(tags=["queue"])
Limit = Annotated[int, Query(ge=1, le=10_000)]


@router.get("/queue")
def show(ctx: Ctx, principal: Reader, limit: Limit = 100, starts: bool = False) -> QueueView:
    """List the waiting jobs in queue order. With `starts`, include the estimated start of each. Names of jobs in other
    people's workspaces are hidden."""
    return queue.show(ctx, principal, limit=limit, starts=starts)


@router.get("/workspaces/{workspace}/jobs/{job}/why")
def why(ctx: Ctx, access: Viewer, job: str) -> WhyView:
    """Return why a job waits, when it will likely start, and the smallest change that would start it now."""
    return queue.why(ctx, access, job)


@router.patch("/workspaces/{workspace}/jobs/{job}")
def change(ctx: Ctx, access: Worker, job: str, request: JobChange) -> JobView:
    """Change the size, priority, limits or machines of a job that is waiting in the queue."""
    return queue.change(ctx, access, job, request)


@router.post("/workspaces/{workspace}/queue/simulate")
def simulate(ctx: Ctx, access: Viewer, wish: StartEstimateRequest) -> StartEstimateView:
    """Estimate when a job would start if it were submitted now. Submits nothing."""
    return queue.simulate(ctx, access, wish)


@router.get("/admin/quotas")
def list_quotas(ctx: Ctx, _: Admin) -> list[QuotaView]:
    """List the quota and current usage of each workspace."""
    return quotas.list_quotas(ctx)


@router.patch("/admin/quotas/{target}")
def set_quota(ctx: Ctx, _: Admin, target: str, request: QuotaSet) -> QuotaView:
    """Set the slot quota or the weight of a workspace, given by its id or its name (if the name is unique)."""
    return quotas.set_quota(ctx, target, request)
