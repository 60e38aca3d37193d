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
from shoal.server.people import invitations as workspace_invitations
from shoal.server.people import workspaces
from shoal.server.policy import AnyMember, Keyholder, Owner, Reader, Viewer
from shoal.server.routers import api_router

router = api_router("/workspaces", tags=["workspaces"])


@router.get("")
def list_workspaces(ctx: Ctx, principal: Reader) -> list[WorkspaceView]:
    """List the workspaces you are a member of."""
    return workspaces.list_workspaces(ctx, principal)


@router.post("", status_code=201)
def create_workspace(ctx: Ctx, principal: Keyholder, request: WorkspaceCreate) -> WorkspaceView:
    """Create a workspace. You become its owner."""
    return workspaces.create_workspace(ctx, principal, request)


@router.patch("/{workspace}")
def rename_workspace(ctx: Ctx, access: Owner, request: WorkspaceRename) -> WorkspaceView:
    """Rename a workspace. Its id and contents stay the same."""
    return workspaces.rename_workspace(ctx, access, request)


@router.delete("/{workspace}", status_code=204)
def delete_workspace(ctx: Ctx, access: Owner) -> None:
    """Delete a workspace with all its jobs. Refused while any of them has not ended."""
    workspaces.delete_workspace(ctx, access)


@router.get("/{workspace}/members")
def list_members(ctx: Ctx, access: Viewer) -> list[MemberView]:
    """List the members of a workspace with their roles."""
    return workspaces.list_members(ctx, access)


@router.put("/{workspace}/members")
def set_member(ctx: Ctx, access: Owner, request: MemberSet) -> MemberView:
    """Add a person who has an account, or change a member's role."""
    return workspaces.set_member(ctx, access, request)


@router.delete("/{workspace}/members/{member}", status_code=204)
def remove_member(ctx: Ctx, access: AnyMember, member: str) -> None:
    """Remove a member by e-mail or user id. Owners can remove anyone; every member can remove themselves."""
    workspaces.remove_member(ctx, access, member)


@router.get("/{workspace}/invitations")
def list_invitations(ctx: Ctx, access: Owner) -> list[WorkspaceInvitationView]:
    """List the open invitations to the workspace, newest first."""
    return workspace_invitations.list_open(ctx, access)


@router.post("/{workspace}/invitations", status_code=201)
def create_invitation(ctx: Ctx, access: Owner, request: WorkspaceInvite) -> WorkspaceInvitationCreated:
    """Create an invitation link with which one person can join, with a new or an existing account. The code is contained in
    this reply only."""
    return workspace_invitations.create(ctx, access, request)


@router.delete("/{workspace}/invitations/{invite}", status_code=204)
def revoke_invitation(ctx: Ctx, access: Owner, invite: str) -> None:
    """Revoke an open invitation. `invite` is its id, or an e-mail address to revoke all open ones for it."""
    workspace_invitations.revoke(ctx, access, invite)
