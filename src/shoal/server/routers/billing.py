"""Usage and cost: sums, prices, verification of the ledger, and quotes for jobs that are not submitted yet."""

from __future__ import annotations

from shoal.core.billing import PricesView, QuoteRequest, QuoteView, UsageBy, UsageView, VerifyView
from shoal.core.schema import Utc
from shoal.server.billing import ledger_check, quotes
from shoal.server.billing import service as billing
from shoal.server.context import Ctx
from shoal.server.policy import Admin, Reader, Viewer
from shoal.server.routers import api_router

router = api_router(tags=["billing"])


@router.get("/billing/prices")
def prices(ctx: Ctx, _: Reader) -> PricesView:
    """Return the price per hour of one slot of each kind. Admins set prices with `PATCH /admin/limits`."""
    return billing.prices(ctx)


@router.get("/billing/usage")
def usage(
    ctx: Ctx, principal: Reader, by: UsageBy = "workspace", since: Utc | None = None, until: Utc | None = None
) -> UsageView:
    """Return the usage of all workspaces you are a member of, grouped as given by `by`."""
    return billing.usage(ctx, billing.own_workspaces(ctx, principal), by=by, since=since, until=until)


@router.get("/workspaces/{workspace}/billing/usage")
def workspace_usage(
    ctx: Ctx, access: Viewer, by: UsageBy = "job", since: Utc | None = None, until: Utc | None = None
) -> UsageView:
    """Return the usage of one workspace, grouped as given by `by`."""
    return billing.usage(ctx, [access.workspace_id], by=by, since=since, until=until)


@router.get("/admin/billing/usage")
def server_usage(
    ctx: Ctx, _: Admin, by: UsageBy = "workspace", since: Utc | None = None, until: Utc | None = None
) -> UsageView:
    """Return the usage of the whole server, grouped as given by `by`."""
    return billing.usage(ctx, None, by=by, since=since, until=until)


@router.get("/workspaces/{workspace}/billing/verify")
def workspace_verify(ctx: Ctx, access: Viewer, head: str | None = None) -> VerifyView:
    """Verify the whole ledger and list the damaged entries of this workspace."""
    return ledger_check.verify(ctx, access.workspace_id, head)


@router.get("/admin/billing/verify")
def verify(ctx: Ctx, _: Admin, head: str | None = None) -> VerifyView:
    """Verify the whole ledger and list every damaged entry."""
    return ledger_check.verify(ctx, None, head)


@router.post("/workspaces/{workspace}/quotes")
def quote(ctx: Ctx, access: Viewer, request: QuoteRequest) -> QuoteView:
    """Estimate the duration and cost of a job from similar jobs. Submits nothing."""
    return quotes.quote(ctx, access, request)
