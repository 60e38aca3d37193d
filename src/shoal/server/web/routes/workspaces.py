"""Workspaces and their members."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from shoal.core.install import install_command
from shoal.core.invite_links import invite_link
from shoal.core.people import MemberSet, Role, WorkspaceCreate, WorkspaceInvite, WorkspaceRename
from shoal.server.context import Ctx
from shoal.server.edge.public_address import address_of
from shoal.server.people import invitations as workspace_invitations
from shoal.server.people import workspaces
from shoal.server.policy import AnyMember, Keyholder, Owner, Reader, Viewer
from shoal.server.web.forms import Fields, days_of, done, go, parse
from shoal.server.web.nav import base_path, workspace_path
from shoal.server.web.render import page

router = APIRouter()
_DAY_S = 86_400


@router.get("/workspaces")
def list_workspaces(ctx: Ctx, request: Request, principal: Reader) -> Response:
    """List the user's workspaces."""
    data = {"workspaces": workspaces.list_workspaces(ctx, principal)}
    return page(request, ctx, principal, "workspaces.html", data)


@router.post("/workspaces")
def create(ctx: Ctx, request: Request, principal: Keyholder, form: Fields) -> Response:
    """Create a workspace and go to it."""
    body = parse(WorkspaceCreate, name=form.get("name", "").strip())
    made = workspaces.create_workspace(ctx, principal, body)
    return go(request, f"{workspace_path(made.name, made.id)}/jobs")


@router.get("/w/{workspace}")
def workspace(access: Viewer) -> Response:
    """Redirect to the runs of a workspace, its front page."""
    return RedirectResponse(f"{base_path(access)}/runs", 303)


@router.post("/w/{workspace}/rename")
def rename(ctx: Ctx, request: Request, access: Owner, form: Fields) -> Response:
    """Rename a workspace and go to its new address."""
    made = workspaces.rename_workspace(ctx, access, parse(WorkspaceRename, name=form.get("name", "").strip()))
    return go(request, f"{workspace_path(made.name, made.id)}/members")


@router.post("/w/{workspace}/delete")
def delete(ctx: Ctx, request: Request, access: Owner) -> Response:
    """Delete a workspace with all its contents."""
    workspaces.delete_workspace(ctx, access)
    return go(request, "/workspaces")


@router.get("/w/{workspace}/members")
def members(ctx: Ctx, request: Request, access: Viewer) -> Response:
    """Show the members of a workspace with their roles."""
    is_owner = access.role == Role.OWNER
    data = {
        "members": workspaces.list_members(ctx, access),
        "roles": list(Role),
        "invitations": workspace_invitations.list_open(ctx, access) if is_owner else [],
    }
    return page(request, ctx, access, "members.html", data, part="_members.html")


@router.post("/w/{workspace}/members")
def set_member(ctx: Ctx, request: Request, access: Owner, form: Fields) -> Response:
    """Add a member, or change a member's role."""
    body = parse(MemberSet, email=form.get("email", "").strip(), role=form.get("role", ""))
    member = workspaces.set_member(ctx, access, body)
    return done(request, f"{member.email} is now {member.role} here.", request.url.path)


@router.post("/w/{workspace}/members/{member}/remove")
def remove_member(ctx: Ctx, request: Request, access: AnyMember, member: str) -> Response:
    """Remove a member, or leave the workspace."""
    workspaces.remove_member(ctx, access, member)
    if member == access.principal.user_id:
        return go(request, "/workspaces")
    return done(request, "Removed from this workspace.", f"{base_path(access)}/members")


@router.post("/w/{workspace}/invitations")
def invite(ctx: Ctx, request: Request, access: Owner, form: Fields) -> Response:
    """Create an invitation and show its link once."""
    days = form.get("days", "")
    life = {"expires_in_s": days_of(days) * _DAY_S} if days.isdecimal() else {}
    body = parse(WorkspaceInvite, email=form.get("email", "").strip(), role=form.get("role", "member"), **life)
    made = workspace_invitations.create(ctx, access, body)
    server = address_of(ctx, request)
    data = {
        "invitation": made,
        "link": invite_link(server.url, made.code, server.ca_fingerprint),
        "install": install_command(server=server.url, fingerprint=server.ca_fingerprint, invitation=made.code),
    }
    shown = page(request, ctx, access, "workspace_invited.html", data, part="_workspace_invited.html", status=201)
    shown.headers["HX-Trigger"] = "shoal:changed"  # the list of open invitations has a new row
    return shown


@router.post("/w/{workspace}/invitations/{invite}/revoke")
def revoke_invitation(ctx: Ctx, request: Request, access: Owner, invite: str) -> Response:
    """Revoke an invitation: its link stops working."""
    workspace_invitations.revoke(ctx, access, invite)
    return done(request, "Invitation revoked.", f"{base_path(access)}/members")
