"""Accounts and sessions."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from shoal.core.errors import AuthError
from shoal.core.people import (
    InvitationCode,
    OpenSession,
    PasswordChange,
    ProfileChange,
    SessionView,
    SignIn,
    SignUp,
    UserView,
    WorkspaceView,
)
from shoal.server.callers import Address, Program
from shoal.server.context import Ctx
from shoal.server.policy import Anyone, Keyholder, Principal, Reader, identify
from shoal.server.routers import api_router
from shoal.server.services import people, sessions, workspace_invitations

router = api_router("/auth", tags=["auth"])


def _caller(request: Request, ctx: Ctx) -> Principal | None:
    """Signing up is open to strangers; only an admin gains by saying who they are."""
    try:
        with ctx.db.read() as session:
            return identify(session, request)
    except AuthError:
        return None


Caller = Annotated[Principal | None, Depends(_caller)]


@router.post("/sign-up", status_code=201, dependencies=[Anyone])
def sign_up(ctx: Ctx, caller: Caller, address: Address, program: Program, request: SignUp) -> SessionView:
    """Make an account. A shared server's first is its admin's; later ones need an admin or an invitation, unless
    sign-up is open."""
    return people.sign_up(ctx, request, caller=caller, address=address, program=program)


@router.post("/sign-in", dependencies=[Anyone])
def sign_in(ctx: Ctx, address: Address, program: Program, request: SignIn) -> SessionView:
    """Start a session of 30 days. After five failures within a minute, wait."""
    return people.sign_in(ctx, request, address=address, program=program)


@router.post("/invitation")
def join_workspace(ctx: Ctx, principal: Keyholder, address: Address, request: InvitationCode) -> WorkspaceView:
    """Join a workspace by an invitation, with the account you have. After five failures within a minute, wait."""
    return workspace_invitations.join(ctx, principal, request.code, address=address)


@router.post("/sign-out", status_code=204)
def sign_out(ctx: Ctx, principal: Reader) -> None:
    """End this session."""
    people.sign_out(ctx, principal)


@router.post("/password", status_code=204)
def change_password(ctx: Ctx, principal: Keyholder, address: Address, request: PasswordChange) -> None:
    """Change the password, ending every other session."""
    people.change_password(ctx, principal, request, address=address)


@router.get("/me")
def me(ctx: Ctx, principal: Reader) -> UserView:
    """Who the key or session belongs to."""
    return people.me(ctx, principal)


@router.patch("/me")
def change_profile(ctx: Ctx, principal: Keyholder, request: ProfileChange) -> UserView:
    """Change your name, as others see it."""
    return people.change_profile(ctx, principal, request)


@router.get("/sessions")
def list_sessions(ctx: Ctx, principal: Reader) -> list[OpenSession]:
    """Where you are signed in, newest first."""
    return sessions.list_sessions(ctx, principal)


@router.delete("/sessions", status_code=204)
def end_other_sessions(ctx: Ctx, principal: Keyholder) -> None:
    """Sign out everywhere else."""
    sessions.end_others(ctx, principal)


@router.delete("/sessions/{session}", status_code=204)
def end_session(ctx: Ctx, principal: Keyholder, session: str) -> None:
    """Sign out in one place."""
    sessions.end_session(ctx, principal, session)
