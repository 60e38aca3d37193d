"""Workspaces and their members."""

from __future__ import annotations

from shoal.core.people import (
    MemberSet,
    MemberView,
    WorkspaceCreate,
    WorkspaceInvitationCreated,
    WorkspaceInvitationView,
    WorkspaceInvite,
    WorkspaceRename,
    WorkspaceView,
)
from shoal.server.context import Ctx
from shoal.server.policy import AnyMember, Keyholder, Owner, Reader, Viewer
from shoal.server.routers import api_router
from shoal.server.services import workspace_invitations, workspaces

router = api_router("/workspaces", tags=["workspaces"])


@router.get("")
def list_workspaces(ctx: Ctx, principal: Reader) -> list[WorkspaceView]:
    """Workspaces you are a member of."""
    return workspaces.list_workspaces(ctx, principal)


@router.post("", status_code=201)
def create_workspace(ctx: Ctx, principal: Keyholder, request: WorkspaceCreate) -> WorkspaceView:
    """Make a workspace and become its owner."""
    return workspaces.create_workspace(ctx, principal, request)


@router.patch("/{workspace}")
def rename_workspace(ctx: Ctx, access: Owner, request: WorkspaceRename) -> WorkspaceView:
    """Give a workspace another name; its id and all that is in it stay."""
    return workspaces.rename_workspace(ctx, access, request)


@router.delete("/{workspace}", status_code=204)
def delete_workspace(ctx: Ctx, access: Owner) -> None:
    """Delete a workspace with all its jobs; refused while any of them is not over."""
    workspaces.delete_workspace(ctx, access)


@router.get("/{workspace}/members")
def list_members(ctx: Ctx, access: Viewer) -> list[MemberView]:
    """Who is in the workspace, and as what."""
    return workspaces.list_members(ctx, access)


@router.put("/{workspace}/members")
def set_member(ctx: Ctx, access: Owner, request: MemberSet) -> MemberView:
    """Add someone with an account, or change their role."""
    return workspaces.set_member(ctx, access, request)


@router.delete("/{workspace}/members/{member}", status_code=204)
def remove_member(ctx: Ctx, access: AnyMember, member: str) -> None:
    """Remove a member by e-mail or user id (owners), or leave (anyone)."""
    workspaces.remove_member(ctx, access, member)


@router.get("/{workspace}/invitations")
def list_invitations(ctx: Ctx, access: Owner) -> list[WorkspaceInvitationView]:
    """Open invitations to the workspace, newest first."""
    return workspace_invitations.list_open(ctx, access)


@router.post("/{workspace}/invitations", status_code=201)
def create_invitation(ctx: Ctx, access: Owner, request: WorkspaceInvite) -> WorkspaceInvitationCreated:
    """Make a link by which one person joins, with a new account or one they have. The code is shown this once."""
    return workspace_invitations.create(ctx, access, request)


@router.delete("/{workspace}/invitations/{invite}", status_code=204)
def revoke_invitation(ctx: Ctx, access: Owner, invite: str) -> None:
    """Revoke an open invitation by id, or all open ones for an e-mail address."""
    workspace_invitations.revoke(ctx, access, invite)
