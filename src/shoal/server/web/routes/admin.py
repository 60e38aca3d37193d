"""Pages for admins of the server: accounts, limits, quotas and the audit log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from shoal.core.admin import AccountChange, AccountCreate, LimitsChange, PasswordReset
from shoal.core.errors import InvalidSpec
from shoal.core.queue import QuotaSet
from shoal.server.audit import check, service
from shoal.server.context import Ctx
from shoal.server.people import admin
from shoal.server.people import invitations as workspace_invitations
from shoal.server.policy import Admin
from shoal.server.queue import quotas
from shoal.server.web import server_health
from shoal.server.web.forms import Fields, done, parse
from shoal.server.web.render import page

router = APIRouter(prefix="/admin")
_PAGE = 100
"""Entries of the audit log on one page."""


@router.get("")
def people(ctx: Ctx, request: Request, principal: Admin) -> Response:
    """Show all accounts, open invitations and problems of the server."""
    data = {
        "accounts": admin.list_accounts(ctx),
        "sign_up": ctx.settings.sign_up,
        "problems": [str(problem) for problem in ctx.loops.problems()],
        "invitations": workspace_invitations.list_all_open(ctx),
    }
    return page(request, ctx, principal, "admin.html", data, part="_accounts.html")


@router.post("/people")
def add(ctx: Ctx, request: Request, _: Admin, form: Fields) -> Response:
    """Create an account for another person."""
    given = {name: form.get(name, "") for name in ("email", "name", "password")}
    made = admin.create_account(ctx, parse(AccountCreate, **given, is_admin="is_admin" in form))
    return done(request, f"{made.email} can sign in now.", "/admin")


@router.post("/people/{user}")
def change(ctx: Ctx, request: Request, principal: Admin, user: str, form: Fields) -> Response:
    """Grant or remove admin rights, or disable or enable an account."""
    body = parse(AccountChange, is_admin=form.get("is_admin"), disabled=form.get("disabled"))
    made = admin.change_account(ctx, principal, user, body)
    if body.disabled is not None:
        text = f"{made.email} is {'disabled' if made.disabled_at else 'enabled again'}."
    else:
        text = f"{made.email} is {'an admin now' if made.is_admin else 'no longer an admin'}."
    return done(request, text, "/admin")


@router.post("/people/{user}/password")
def reset_password(ctx: Ctx, request: Request, _: Admin, user: str, form: Fields) -> Response:
    """Set a new password for an account."""
    made = admin.reset_password(ctx, user, parse(PasswordReset, password=form.get("password", "")))
    return done(request, f"{made.email} has a new password. Send it to them; all their sessions have ended.", "/admin")


@router.post("/invitations/{invite}/revoke")
def revoke_invitation(ctx: Ctx, request: Request, _: Admin, invite: str) -> Response:
    """Revoke an open invitation to any workspace."""
    workspace_invitations.revoke_any(ctx, invite)
    return done(request, "Invitation revoked.", "/admin")


@router.get("/limits")
def limits(ctx: Ctx, request: Request, principal: Admin) -> Response:
    """Show the server-wide limits."""
    return page(request, ctx, principal, "admin_limits.html", {"limits": admin.limits(ctx)})


@router.post("/limits")
def change_limits(ctx: Ctx, request: Request, _: Admin, form: Fields) -> Response:
    """Change the server-wide limits, immediately and permanently."""
    given = {name: form[name].strip() for name in LimitsChange.model_fields if form.get(name, "").strip()}
    if "price_models" in form:  # may be emptied
        given["price_models"] = form["price_models"].strip()
    ticked = {name: name in form for name in ("sign_up", "queue_preempt")}
    admin.change_limits(ctx, parse(LimitsChange, **given | ticked))
    return done(request, "Saved. The new limits are in effect.", "/admin/limits")


@router.get("/quotas")
def list_quotas(ctx: Ctx, request: Request, principal: Admin) -> Response:
    """Show the quota and current usage of each workspace."""
    data = {"quotas": quotas.list_quotas(ctx)}
    return page(request, ctx, principal, "admin_quotas.html", data, part="_quotas.html")


@router.post("/quotas/{target}")
def set_quota(ctx: Ctx, request: Request, _: Admin, target: str, form: Fields) -> Response:
    """Set the slot quota and weight of a workspace; an empty number removes the quota."""
    slots = form.get("slots", "").strip()
    given: dict[str, Any] = {"weight": form.get("weight", "").strip() or None}
    if "models" in form:
        given["models"] = quotas.changed_models(ctx, target, form["models"])
    body = parse(QuotaSet, slots=slots or None, unlimited=not slots, **given)
    made = quotas.set_quota(ctx, target, body)
    held = "any number of slots" if made.slots is None else f"up to {made.slots} slots"
    return done(request, f"{made.workspace} may hold {held}.", "/admin/quotas")


@router.get("/health")
def health(ctx: Ctx, request: Request, principal: Admin, part: Literal["", "findings"] = "") -> Response:
    """Show how the server is: problems, disk, database, waiting times, versions; its parts are examined after that."""
    if part:
        data: dict[str, Any] = {"findings": server_health.findings(ctx)}
        return page(request, ctx, principal, "_health_findings.html", data, part="_health_findings.html")
    return page(
        request, ctx, principal, "admin_health.html", {"health": server_health.measure(ctx)}, part="_health.html"
    )


@router.get("/audit")
def audit_log(
    ctx: Ctx,
    request: Request,
    principal: Admin,
    actor: str = "",
    action: str = "",
    workspace: str = "",
    since: str = "",
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
    verify: bool = False,
) -> Response:
    """Show who did what on this server, newest first; with `verify` also whether the log is intact."""
    filters = {"actor": actor, "action": action, "workspace": workspace, "since": since}
    given = {name: value for name, value in filters.items() if value}
    entries = service.list_entries(
        ctx, actor=actor, action=action, workspace=workspace, since=_day(since), before=before, limit=_PAGE
    )
    more = {**given, "before": str(entries[-1].seq)} if len(entries) == _PAGE else None
    data = {
        "entries": entries,
        "filters": filters,
        "older": f"/admin/audit?{urlencode(more)}" if more else None,
        "verified": check.verify(ctx) if verify else None,
    }
    return page(request, ctx, principal, "admin_audit.html", data, part="_audit.html")


def _day(text: str) -> datetime | None:
    """Return the start of a day (UTC) in a field; None if it is empty."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC) if text else None
    except ValueError:
        raise InvalidSpec(f"{text!r} is not a day; write it as 2026-01-31.") from None
