"""What was used and what it costs: sums, the ledger's verification, prices, and quotes for jobs not yet submitted."""

from __future__ import annotations

from shoal.core.billing import PricesView, QuoteAsk, QuoteView, UsageBy, UsageView, VerifyView
from shoal.core.schema import Utc
from shoal.server.context import Ctx
from shoal.server.policy import Admin, Reader, Viewer
from shoal.server.routers import api_router
from shoal.server.services import billing, ledger_check, quotes

router = api_router(tags=["billing"])


@router.get("/billing/prices")
def prices(ctx: Ctx, _: Reader) -> PricesView:
    """What a slot of each kind costs for an hour. Admins set prices with the other limits."""
    return billing.prices(ctx)


@router.get("/billing/usage")
def usage(
    ctx: Ctx, principal: Reader, by: UsageBy = "workspace", since: Utc | None = None, until: Utc | None = None
) -> UsageView:
    """What was used in all workspaces one is a member of."""
    return billing.usage(ctx, billing.own_workspaces(ctx, principal), by=by, since=since, until=until)


@router.get("/workspaces/{workspace}/billing/usage")
def workspace_usage(
    ctx: Ctx, access: Viewer, by: UsageBy = "job", since: Utc | None = None, until: Utc | None = None
) -> UsageView:
    """What was used in a workspace."""
    return billing.usage(ctx, [access.workspace_id], by=by, since=since, until=until)


@router.get("/admin/billing/usage")
def server_usage(
    ctx: Ctx, _: Admin, by: UsageBy = "workspace", since: Utc | None = None, until: Utc | None = None
) -> UsageView:
    """What was used on the whole server."""
    return billing.usage(ctx, None, by=by, since=since, until=until)


@router.get("/workspaces/{workspace}/billing/verify")
def workspace_verify(ctx: Ctx, access: Viewer, head: str | None = None) -> VerifyView:
    """Read the whole ledger again, and name the damaged entries of this workspace."""
    return ledger_check.verify(ctx, access.workspace_id, head)


@router.get("/admin/billing/verify")
def verify(ctx: Ctx, _: Admin, head: str | None = None) -> VerifyView:
    """Read the whole ledger again, and name every damaged entry."""
    return ledger_check.verify(ctx, None, head)


@router.post("/workspaces/{workspace}/quotes")
def quote(ctx: Ctx, access: Viewer, request: QuoteAsk) -> QuoteView:
    """How long a job would take and what it would cost, from jobs like it. Submits nothing."""
    return quotes.quote(ctx, access, request)
