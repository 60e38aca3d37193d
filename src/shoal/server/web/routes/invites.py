"""The page behind an invitation to a workspace: sign up and join, or join with an existing account."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from shoal.core.errors import AuthError, Forbidden, ShoalError
from shoal.core.install import install_command
from shoal.core.invite_links import invite_path
from shoal.core.people import Scope, SignUp, WorkspaceInvitationView, WorkspaceView
from shoal.server.context import Context, Ctx
from shoal.server.edge.public_address import address_of
from shoal.server.people import invitations as workspace_invitations
from shoal.server.people import sign_in
from shoal.server.policy import Anyone, Principal, identify
from shoal.server.request_origin import Address, Program
from shoal.server.web.cookies import set_session
from shoal.server.web.forms import Fields, parse
from shoal.server.web.render import bare_page

router = APIRouter(prefix="/invite")


@router.get("/{code}", dependencies=[Anyone])
def invite(ctx: Ctx, request: Request, code: str, address: Address) -> Response:
    """Show which workspace the invitation is to, and how to accept it."""
    found = workspace_invitations.peek(ctx, code, address=address)
    return _page(ctx, request, found, code, _signed_in(ctx, request))


@router.post("/{code}", dependencies=[Anyone])
def accept(ctx: Ctx, request: Request, code: str, address: Address, program: Program, form: Fields) -> Response:
    """Join with the account that is signed in, or with a new one."""
    me = _signed_in(ctx, request)
    found = workspace_invitations.peek(ctx, code, address=address)
    try:
        if me is not None:
            joined = workspace_invitations.join(ctx, me, code, address=address)
            return RedirectResponse(_jobs_of(joined), 303)
        given = {name: form.get(name, "") for name in ("email", "password", "name")}
        body = parse(SignUp, **given, invitation=code)
        session = sign_in.sign_up(ctx, body, caller=None, address=address, program=program)
    except ShoalError as error:
        return _page(ctx, request, found, code, me, error=error, email=form.get("email", ""), name=form.get("name", ""))
    response = RedirectResponse(_jobs_of(session.joined) if session.joined else "/", 303)
    set_session(response, request, session.token, session.expires_at)
    return response


def _page(
    ctx: Context,
    request: Request,
    found: WorkspaceInvitationView,
    code: str,
    me: Principal | None,
    *,
    error: ShoalError | None = None,
    email: str = "",
    name: str = "",
) -> Response:
    server = address_of(ctx, request)
    data: dict[str, Any] = {
        "invitation": found,
        "install": install_command(server=server.url, fingerprint=server.ca_fingerprint, invitation=code),
        "path": invite_path(code),
        "code": code,
        "services": [] if ctx.private else ctx.sign_in_services.list(),
        "me": me.email if me else None,
        "error": error.message if error else None,
        "email": found.email or email,
        "name": name,
    }
    return bare_page(request, "invite.html", data, status=error.http_status if error else 200)


def _jobs_of(workspace: WorkspaceView) -> str:
    """Return the link to the workspace's jobs, by id: another workspace of the user may have the same name."""
    return f"/w/{workspace.id}/jobs"


def _signed_in(ctx: Context, request: Request) -> Principal | None:
    """Return the user who is signed in to this browser; None for a key whose scopes do not allow joining."""
    try:
        with ctx.db.read() as session:
            found = identify(session, request)
    except (AuthError, Forbidden):
        return None
    return found if Scope.ADMIN in found.scopes else None
