"""Workspaces and their members."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from shoal.core.invite_links import invite_link
from shoal.core.people import MemberSet, Role, WorkspaceCreate, WorkspaceInvite, WorkspaceRename
from shoal.server.context import Ctx
from shoal.server.policy import AnyMember, Keyholder, Owner, Reader, Viewer
from shoal.server.services import workspace_invitations, workspaces
from shoal.server.web.forms import Fields, done, go, parse
from shoal.server.web.nav import base_path, workspace_path
from shoal.server.web.render import page

router = APIRouter()
_DAY_S = 86_400


@router.get("/workspaces")
def list_workspaces(ctx: Ctx, request: Request, principal: Reader) -> Response:
    """Workspaces one is a member of."""
    data = {"workspaces": workspaces.list_workspaces(ctx, principal)}
    return page(request, ctx, principal, "workspaces.html", data)


@router.post("/workspaces")
def create(ctx: Ctx, request: Request, principal: Keyholder, form: Fields) -> Response:
    """Make a workspace and go there."""
    body = parse(WorkspaceCreate, name=form.get("name", "").strip())
    made = workspaces.create_workspace(ctx, principal, body)
    return go(request, f"{workspace_path(made.name, made.id)}/jobs")


@router.get("/w/{workspace}")
def workspace(access: Viewer) -> Response:
    """Its jobs are what people come for."""
    return RedirectResponse(f"{base_path(access)}/jobs", 303)


@router.post("/w/{workspace}/rename")
def rename(ctx: Ctx, request: Request, access: Owner, form: Fields) -> Response:
    """Give it another name, and go to where it is then."""
    made = workspaces.rename_workspace(ctx, access, parse(WorkspaceRename, name=form.get("name", "").strip()))
    return go(request, f"{workspace_path(made.name, made.id)}/members")


@router.post("/w/{workspace}/delete")
def delete(ctx: Ctx, request: Request, access: Owner) -> Response:
    """Delete a workspace with all that is in it."""
    workspaces.delete_workspace(ctx, access)
    return go(request, "/workspaces")


@router.get("/w/{workspace}/members")
def members(ctx: Ctx, request: Request, access: Viewer) -> Response:
    """Who is in it, and as what."""
    is_owner = access.role == Role.OWNER
    data = {
        "members": workspaces.list_members(ctx, access),
        "roles": list(Role),
        "invitations": workspace_invitations.list_open(ctx, access) if is_owner else [],
    }
    return page(request, ctx, access, "members.html", data, part="_members.html")


@router.post("/w/{workspace}/members")
def set_member(ctx: Ctx, request: Request, access: Owner, form: Fields) -> Response:
    """Add someone, or change their role."""
    body = parse(MemberSet, email=form.get("email", "").strip(), role=form.get("role", ""))
    member = workspaces.set_member(ctx, access, body)
    return done(request, f"{member.email} is now {member.role} here.", request.url.path)


@router.post("/w/{workspace}/members/{member}/remove")
def remove_member(ctx: Ctx, request: Request, access: AnyMember, member: str) -> Response:
    """Remove someone, or leave."""
    workspaces.remove_member(ctx, access, member)
    if member == access.principal.user_id:
        return go(request, "/workspaces")
    return done(request, "Removed from this workspace.", f"{base_path(access)}/members")


@router.post("/w/{workspace}/invitations")
def invite(ctx: Ctx, request: Request, access: Owner, form: Fields) -> Response:
    """Make an invitation and show its link, this once."""
    days = form.get("days", "")
    life = {"expires_in_s": int(days) * _DAY_S} if days.isdigit() else {}
    body = parse(WorkspaceInvite, email=form.get("email", "").strip(), role=form.get("role", "member"), **life)
    made = workspace_invitations.create(ctx, access, body)
    data = {"invitation": made, "link": invite_link(str(request.base_url), made.code)}
    shown = page(request, ctx, access, "workspace_invited.html", data, part="_workspace_invited.html", status=201)
    shown.headers["HX-Trigger"] = "shoal:changed"  # the list of open ones has a new row
    return shown


@router.post("/w/{workspace}/invitations/{invite}/revoke")
def revoke_invitation(ctx: Ctx, request: Request, access: Owner, invite: str) -> Response:
    """Its link stops working."""
    workspace_invitations.revoke(ctx, access, invite)
    return done(request, "Invitation revoked.", f"{base_path(access)}/members")
