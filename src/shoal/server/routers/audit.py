"""The audit log, for admins of the server."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import StreamingResponse

from shoal.core.audit import AuditEntry, AuditVerified
from shoal.core.schema import Utc
from shoal.server.audit import check, service
from shoal.server.context import Ctx
from shoal.server.policy import Admin
from shoal.server.routers import api_router

router = api_router("/admin/audit", tags=["audit"])


@router.get("")
def list_entries(
    ctx: Ctx,
    _: Admin,
    actor: str | None = None,
    action: str | None = None,
    workspace: str | None = None,
    since: Utc | None = None,
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[AuditEntry]:
    """List entries of the audit log, newest first. `action` is an action (`job.stop`) or the kind of its object (`job`);
    `workspace` is a name or an id; `before` is the number of an entry, to page on."""
    return service.list_entries(
        ctx, actor=actor, action=action, workspace=workspace, since=since, before=before, limit=limit
    )


@router.get("/verify")
def verify(ctx: Ctx, _: Admin, head: str | None = None) -> AuditVerified:
    """Verify the whole audit log and list every changed, removed or inserted entry. `head` is the head of an earlier
    verification (`SEQ:HASH`), which the log must still contain."""
    return check.verify(ctx, head)


@router.get("/export")
def export(
    ctx: Ctx,
    _: Admin,
    actor: str | None = None,
    action: str | None = None,
    workspace: str | None = None,
    since: Utc | None = None,
) -> StreamingResponse:
    """Return the entries of the audit log as JSON lines, oldest first."""
    lines = service.export(ctx, actor=actor, action=action, workspace=workspace, since=since)
    return StreamingResponse(lines, media_type="application/x-ndjson")
