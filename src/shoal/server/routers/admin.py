"""For admins of the server: accounts and limits."""

from __future__ import annotations

from shoal.core.admin import AccountChange, AccountCreate, AccountView, LimitsChange, LimitsView, PasswordReset
from shoal.core.people import WorkspaceInvitationView
from shoal.server.context import Ctx
from shoal.server.policy import Admin
from shoal.server.routers import api_router
from shoal.server.services import admin, workspace_invitations

router = api_router("/admin", tags=["admin"])


@router.get("/users")
def list_accounts(ctx: Ctx, _: Admin) -> list[AccountView]:
    """Everyone with an account, by e-mail."""
    return admin.list_accounts(ctx)


@router.post("/users", status_code=201)
def create_account(ctx: Ctx, _: Admin, request: AccountCreate) -> AccountView:
    """Make an account for someone, also where sign-up is closed."""
    return admin.create_account(ctx, request)


@router.patch("/users/{user}")
def change_account(ctx: Ctx, principal: Admin, user: str, request: AccountChange) -> AccountView:
    """Make someone an admin or not; disable an account or enable it again. By user id or e-mail."""
    return admin.change_account(ctx, principal, user, request)


@router.put("/users/{user}/password")
def reset_password(ctx: Ctx, _: Admin, user: str, request: PasswordReset) -> AccountView:
    """Set a new password for someone, ending all their sessions."""
    return admin.reset_password(ctx, user, request)


@router.get("/invitations")
def list_invitations(ctx: Ctx, _: Admin) -> list[WorkspaceInvitationView]:
    """Open invitations to all workspaces, newest first."""
    return workspace_invitations.list_all_open(ctx)


@router.delete("/invitations/{invite}", status_code=204)
def revoke_invitation(ctx: Ctx, _: Admin, invite: str) -> None:
    """Revoke an open invitation to any workspace by id, or all open ones for an e-mail address."""
    workspace_invitations.revoke_any(ctx, invite)


@router.get("/limits")
def limits(ctx: Ctx, _: Admin) -> LimitsView:
    """Limits that hold for everyone."""
    return admin.limits(ctx)


@router.patch("/limits")
def change_limits(ctx: Ctx, _: Admin, request: LimitsChange) -> LimitsView:
    """Change limits, at once and for good."""
    return admin.change_limits(ctx, request)
