"""Routes for admins of the server: accounts, invitations and limits."""

from __future__ import annotations

from shoal.core.admin import AccountChange, AccountCreate, AccountView, LimitsChange, LimitsView, PasswordReset
from shoal.core.people import WorkspaceInvitationView
from shoal.server.context import Ctx
from shoal.server.people import admin
from shoal.server.people import invitations as workspace_invitations
from shoal.server.policy import Admin
from shoal.server.routers import api_router

router = api_router("/admin", tags=["admin"])


@router.get("/users")
def list_accounts(ctx: Ctx, _: Admin) -> list[AccountView]:
    """List all accounts, sorted by e-mail."""
    return admin.list_accounts(ctx)


@router.post("/users", status_code=201)
def create_account(ctx: Ctx, _: Admin, request: AccountCreate) -> AccountView:
    """Create an account for another person. Works even if sign-up is closed."""
    return admin.create_account(ctx, request)


@router.patch("/users/{user}")
def change_account(ctx: Ctx, principal: Admin, user: str, request: AccountChange) -> AccountView:
    """Grant or remove admin rights, or disable or enable an account. `user` is a user id or an e-mail."""
    return admin.change_account(ctx, principal, user, request)


@router.put("/users/{user}/password")
def reset_password(ctx: Ctx, _: Admin, user: str, request: PasswordReset) -> AccountView:
    """Set a new password for an account and end all its sessions."""
    return admin.reset_password(ctx, user, request)


@router.get("/invitations")
def list_invitations(ctx: Ctx, _: Admin) -> list[WorkspaceInvitationView]:
    """List the open invitations to all workspaces, newest first."""
    return workspace_invitations.list_all_open(ctx)


@router.delete("/invitations/{invite}", status_code=204)
def revoke_invitation(ctx: Ctx, _: Admin, invite: str) -> None:
    """Revoke an open invitation to any workspace. `invite` is its id, or an e-mail address to revoke all open ones for it."""
    workspace_invitations.revoke_any(ctx, invite)


@router.get("/limits")
def limits(ctx: Ctx, _: Admin) -> LimitsView:
    """Return the server-wide limits."""
    return admin.limits(ctx)


@router.patch("/limits")
def change_limits(ctx: Ctx, _: Admin, request: LimitsChange) -> LimitsView:
    """Change server-wide limits. Takes effect immediately and is kept across restarts."""
    return admin.change_limits(ctx, request)
