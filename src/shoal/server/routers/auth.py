"""Accounts and sessions."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from shoal.core.errors import AuthError
from shoal.core.people import (
    ConnectedService,
    InvitationCode,
    MailedCode,
    OpenSession,
    OwnerAccount,
    PasswordChange,
    PasswordLost,
    PasswordRecovery,
    ProfileChange,
    SessionView,
    SignIn,
    SignUp,
    UserView,
    WorkspaceView,
)
from shoal.server.context import Ctx
from shoal.server.people import invitations as workspace_invitations
from shoal.server.people import recovery, sessions
from shoal.server.people import sign_in as people
from shoal.server.people.oidc import identities
from shoal.server.policy import Anyone, Keyholder, Principal, Reader, identify
from shoal.server.request_origin import Address, Program
from shoal.server.routers import api_router

router = api_router("/auth", tags=["auth"])


def _caller(request: Request, ctx: Ctx) -> Principal | None:
    """Return the caller, or None without valid credentials: sign-up needs none, but an admin may send theirs."""
    try:
        with ctx.db.read() as session:
            return identify(session, request)
    except AuthError:
        return None


Caller = Annotated[Principal | None, Depends(_caller)]


@router.post("/sign-up", status_code=201, dependencies=[Anyone])
def sign_up(ctx: Ctx, caller: Caller, address: Address, program: Program, request: SignUp) -> SessionView:
    """Create an account. The first account of a shared server is its admin. Later ones need an admin or an invitation,
    unless sign-up is open."""
    return people.sign_up(ctx, request, caller=caller, address=address, program=program)


@router.post("/owner")
def claim_owner(ctx: Ctx, principal: Keyholder, request: OwnerAccount) -> UserView:
    """Give the owner of a private server an e-mail address and a password, so that the server can be shared and stays theirs."""
    return people.claim_owner(ctx, principal, request)


@router.post("/sign-in", dependencies=[Anyone])
def sign_in(ctx: Ctx, address: Address, program: Program, request: SignIn) -> SessionView:
    """Start a session that lasts 30 days. Attempts are rate-limited after five failures within a minute."""
    return people.sign_in(ctx, request, address=address, program=program)


@router.post("/invitation")
def join_workspace(ctx: Ctx, principal: Keyholder, address: Address, request: InvitationCode) -> WorkspaceView:
    """Join a workspace with an invitation code and your existing account. Attempts are rate-limited after five failures
    within a minute."""
    return workspace_invitations.join(ctx, principal, request.code, address=address)


@router.post("/sign-out", status_code=204)
def sign_out(ctx: Ctx, principal: Reader) -> None:
    """End this session."""
    people.sign_out(ctx, principal)


@router.post("/password", status_code=204)
def change_password(ctx: Ctx, principal: Keyholder, address: Address, request: PasswordChange) -> None:
    """Change your password and end all your other sessions."""
    people.change_password(ctx, principal, request, address=address)


@router.post("/password/lost", status_code=204, dependencies=[Anyone])
def send_reset(ctx: Ctx, address: Address, request: PasswordLost) -> None:
    """Send a mail with a code that sets a new password within an hour. The reply is the same if there is no such account.
    409 if the server sends no mail."""
    recovery.send_reset(ctx, request.email, address=address)


@router.post("/password/recover", status_code=204, dependencies=[Anyone])
def recover(ctx: Ctx, address: Address, request: PasswordRecovery) -> None:
    """Set a new password with the code from a mail, and end all sessions of the account. API keys end too if its address was never verified."""
    recovery.recover(ctx, request, address=address)


@router.post("/email/send", status_code=204)
def send_verification(ctx: Ctx, principal: Keyholder) -> None:
    """Send a mail with a code that proves that the account's address is yours."""
    recovery.send_verification(ctx, principal)


@router.post("/email/verify", status_code=204)
def verify_email(ctx: Ctx, principal: Keyholder, request: MailedCode) -> None:
    """Verify the account's address with the code from a mail."""
    recovery.verify(ctx, principal, request.code)


@router.get("/services")
def list_services(ctx: Ctx, principal: Reader) -> list[ConnectedService]:
    """List the sign-in services of this server, such as Google, each with your account there if it is connected."""
    return identities.list_connected(ctx, principal)


@router.delete("/services/{service}", status_code=204)
def disconnect_service(ctx: Ctx, principal: Keyholder, service: str) -> None:
    """Disconnect your account at a sign-in service, unless it is your only way to sign in."""
    identities.disconnect(ctx, principal, service)


@router.get("/me")
def me(ctx: Ctx, principal: Reader) -> UserView:
    """Return the account that the API key or session belongs to."""
    return people.me(ctx, principal)


@router.patch("/me")
def change_profile(ctx: Ctx, principal: Keyholder, request: ProfileChange) -> UserView:
    """Change your display name."""
    return people.change_profile(ctx, principal, request)


@router.get("/sessions")
def list_sessions(ctx: Ctx, principal: Reader) -> list[OpenSession]:
    """List your open sessions, newest first."""
    return sessions.list_sessions(ctx, principal)


@router.delete("/sessions", status_code=204)
def end_other_sessions(ctx: Ctx, principal: Keyholder) -> None:
    """End all your sessions except this one."""
    sessions.end_others(ctx, principal)


@router.delete("/sessions/{session}", status_code=204)
def end_session(ctx: Ctx, principal: Keyholder, session: str) -> None:
    """End one of your sessions."""
    sessions.end_session(ctx, principal, session)
