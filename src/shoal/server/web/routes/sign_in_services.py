"""Sign-in with a service such as Google: to the issuer, and back from it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from shoal.core.errors import AuthError, Forbidden, NotAllowedNow, ShoalError
from shoal.server.context import Context, Ctx
from shoal.server.people.oidc import flow, identities
from shoal.server.policy import Anyone, Keyholder, Principal, identify
from shoal.server.request_origin import Program
from shoal.server.web import entry
from shoal.server.web.cookies import clear_sign_in, keep_sign_in, set_session, sign_in_under_way
from shoal.server.web.forms import done, local_path
from shoal.server.web.render import bare_page

router = APIRouter()
_SETTINGS = "/settings"


@router.get("/sign-in/with/{service}", dependencies=[Anyone])
def begin(ctx: Ctx, request: Request, service: str, next: str = "/", invitation: str = "") -> Response:
    """Redirect to the issuer of a sign-in service."""
    try:
        return _go(ctx, request, service, local_path(next), invitation=invitation[:200])
    except ShoalError as error:
        return _failed(ctx, request, error, next)


@router.get("/settings/connect/{service}")
def connect(ctx: Ctx, request: Request, principal: Keyholder, service: str) -> Response:
    """Connect an account at a sign-in service to the one that is signed in."""
    return _go(ctx, request, service, _SETTINGS, connects=principal.user_id)


@router.post("/settings/disconnect/{service}")
def disconnect(ctx: Ctx, request: Request, principal: Keyholder, service: str) -> Response:
    """Disconnect an account at a sign-in service."""
    identities.disconnect(ctx, principal, service)
    return done(request, "Disconnected.", _SETTINGS)


@router.get("/sign-in/callback/{service}", dependencies=[Anyone])
def finish(ctx: Ctx, request: Request, service: str, program: Program) -> Response:
    """Check the issuer's answer and start a session."""
    cookie = sign_in_under_way(request)
    try:
        _refuse_private(ctx)
        caller = _signed_in(ctx, request)
        session, begun = flow.finish(ctx, service, cookie, dict(request.query_params), caller=caller, program=program)
    except ShoalError as error:
        return _failed(ctx, request, error)
    path = local_path(begun.next)
    if session is not None and session.joined is not None:
        path = f"/w/{session.joined.id}/jobs"
    response = RedirectResponse(path, 303)
    clear_sign_in(response, request)
    if session is not None:
        set_session(response, request, session.token, session.expires_at)
    return response


def _go(ctx: Context, request: Request, service: str, next_path: str, *, invitation: str = "",
        connects: str = "") -> Response:  # fmt: skip
    _refuse_private(ctx)
    back = f"{str(request.base_url).rstrip('/')}/sign-in/callback/{service}"
    url, cookie = flow.begin(
        ctx, service, redirect_uri=back, next_path=next_path, invitation=invitation, connects=connects
    )
    response = RedirectResponse(url, 303)
    keep_sign_in(response, request, cookie, flow.LIFE_S)
    return response


def _failed(ctx: Context, request: Request, error: ShoalError, next_path: str = "/") -> Response:
    data = entry.sign_in_data(ctx, next_path, error=f"{error.message} {error.hint or ''}".strip())
    response = bare_page(request, "sign_in.html", data, status=error.http_status)
    clear_sign_in(response, request)
    return response


def _refuse_private(ctx: Context) -> None:
    if ctx.private:
        raise NotAllowedNow("A private server has one owner, who signs in with a key file.", hint="shoal console")


def _signed_in(ctx: Context, request: Request) -> Principal | None:
    try:
        with ctx.db.read() as session:
            return identify(session, request)
    except (AuthError, Forbidden):
        return None
