"""For admins of the server: people and limits."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.admin import AccountChange, AccountCreate, LimitsChange, PasswordReset
from shoal.core.queue import QuotaSet
from shoal.server.context import Ctx
from shoal.server.policy import Admin
from shoal.server.services import admin, quotas, workspace_invitations
from shoal.server.web.forms import Fields, done, parse
from shoal.server.web.render import page

router = APIRouter(prefix="/admin")


@router.get("")
def people(ctx: Ctx, request: Request, principal: Admin) -> Response:
    """Everyone with an account."""
    data = {
        "accounts": admin.list_accounts(ctx),
        "sign_up": ctx.settings.sign_up,
        "problems": [str(problem) for problem in ctx.loops.problems()],
        "invitations": workspace_invitations.list_all_open(ctx),
    }
    return page(request, ctx, principal, "admin.html", data, part="_accounts.html")


@router.post("/people")
def add(ctx: Ctx, request: Request, _: Admin, form: Fields) -> Response:
    """Make an account for someone."""
    given = {name: form.get(name, "") for name in ("email", "name", "password")}
    made = admin.create_account(ctx, parse(AccountCreate, **given, is_admin="is_admin" in form))
    return done(request, f"{made.email} can sign in now.", "/admin")


@router.post("/people/{user}")
def change(ctx: Ctx, request: Request, principal: Admin, user: str, form: Fields) -> Response:
    """Make someone an admin or not; disable or enable."""
    body = parse(AccountChange, is_admin=form.get("is_admin"), disabled=form.get("disabled"))
    made = admin.change_account(ctx, principal, user, body)
    if body.disabled is not None:
        text = f"{made.email} is {'disabled' if made.disabled_at else 'enabled again'}."
    else:
        text = f"{made.email} is {'an admin now' if made.is_admin else 'no admin any more'}."
    return done(request, text, "/admin")


@router.post("/people/{user}/password")
def reset_password(ctx: Ctx, request: Request, _: Admin, user: str, form: Fields) -> Response:
    """Set a new password for someone."""
    made = admin.reset_password(ctx, user, parse(PasswordReset, password=form.get("password", "")))
    return done(
        request, f"{made.email} has a new password. Tell it to them; every session of theirs has ended.", "/admin"
    )


@router.post("/invitations/{invite}/revoke")
def revoke_invitation(ctx: Ctx, request: Request, _: Admin, invite: str) -> Response:
    """Revoke an open invitation to any workspace."""
    workspace_invitations.revoke_any(ctx, invite)
    return done(request, "Invitation revoked.", "/admin")


@router.get("/limits")
def limits(ctx: Ctx, request: Request, principal: Admin) -> Response:
    """What holds for everyone."""
    return page(request, ctx, principal, "admin_limits.html", {"limits": admin.limits(ctx)})


@router.post("/limits")
def change_limits(ctx: Ctx, request: Request, _: Admin, form: Fields) -> Response:
    """Change them, at once and for good."""
    given = {name: form[name].strip() for name in LimitsChange.model_fields if form.get(name, "").strip()}
    ticked = {name: name in form for name in ("sign_up", "queue_preempt")}
    admin.change_limits(ctx, parse(LimitsChange, **given | ticked))
    return done(request, "Saved. It holds from now on.", "/admin/limits")


@router.get("/quotas")
def list_quotas(ctx: Ctx, request: Request, principal: Admin) -> Response:
    """What each workspace may use, and uses."""
    data = {"quotas": quotas.list_quotas(ctx)}
    return page(request, ctx, principal, "admin_quotas.html", data, part="_quotas.html")


@router.post("/quotas/{target}")
def set_quota(ctx: Ctx, request: Request, _: Admin, target: str, form: Fields) -> Response:
    """Set a workspace's slots and weight; no number takes the quota away."""
    slots = form.get("slots", "").strip()
    body = parse(QuotaSet, slots=slots or None, unlimited=not slots, weight=form.get("weight", "").strip() or None)
    made = quotas.set_quota(ctx, target, body)
    held = "as many slots as there are" if made.slots is None else f"up to {made.slots} slots"
    return done(request, f"{made.workspace} may hold {held}.", "/admin/quotas")
