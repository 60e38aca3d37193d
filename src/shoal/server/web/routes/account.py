"""Sign-up, sign-in and sign-out, and the link that `shoal console` opens."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from shoal.core.errors import AuthError, ShoalError
from shoal.core.people import SessionView, SignIn, SignUp
from shoal.server.context import Context, Ctx
from shoal.server.people import sign_in as people
from shoal.server.policy import Anyone, Keyholder
from shoal.server.request_origin import Address, Program
from shoal.server.web import entry
from shoal.server.web.cookies import clear_session, set_session
from shoal.server.web.forms import Fields, go, local_path, parse
from shoal.server.web.render import bare_page, is_htmx

router = APIRouter()


@router.get("/sign-in", dependencies=[Anyone])
def sign_in_page(ctx: Ctx, request: Request, next: str = "/", expired: bool = False) -> Response:
    """Show the sign-in form."""
    return bare_page(request, "sign_in.html", entry.sign_in_data(ctx, next, expired=expired))


@router.post("/sign-in", dependencies=[Anyone])
def sign_in(ctx: Ctx, request: Request, form: Fields, address: Address, program: Program) -> Response:
    """Check the password and start a session."""
    try:
        body = parse(SignIn, email=form.get("email", ""), password=form.get("password", ""))
        session = people.sign_in(ctx, body, address=address, program=program)
    except ShoalError as error:
        if is_htmx(request):
            raise
        data = entry.sign_in_data(ctx, form.get("next", "/"), error=error.message, email=form.get("email", ""))
        return bare_page(request, "sign_in.html", data, status=error.http_status)
    return _welcome(request, session, form.get("next"))


@router.get("/sign-up", dependencies=[Anyone])
def sign_up_page(ctx: Ctx, request: Request) -> Response:
    """Show the sign-up form, or why there is none."""
    return _sign_up_page(ctx, request, is_open=entry.may_sign_up(ctx))


@router.post("/sign-up", dependencies=[Anyone])
def sign_up(ctx: Ctx, request: Request, form: Fields, address: Address, program: Program) -> Response:
    """Create an account and start its first session."""
    given = {name: form.get(name, "") for name in ("email", "password", "name", "setup_code")}
    try:
        session = people.sign_up(ctx, parse(SignUp, **given), caller=None, address=address, program=program)
    except ShoalError as error:
        if is_htmx(request):
            raise
        return _sign_up_page(ctx, request, error=error, email=given["email"], name=given["name"])
    return _welcome(request, session, "/")


def _sign_up_page(
    ctx: Ctx,
    request: Request,
    *,
    is_open: bool = True,
    error: ShoalError | None = None,
    email: str = "",
    name: str = "",
) -> Response:
    data = {
        "open": is_open,
        "first": ctx.layout.setup_code.exists(),
        "error": error and error.message,
        "email": email,
        "name": name,
    }
    return bare_page(request, "sign_up.html", data, status=error.http_status if error else 200)


@router.post("/sign-out", dependencies=[Anyone])
def sign_out(ctx: Ctx, request: Request) -> Response:
    """End the session, if there still is one."""
    try:
        people.sign_out(ctx, _caller(ctx, request))
    except AuthError:
        pass
    response = go(request, "/sign-in")
    clear_session(response, request)
    return response


@router.get("/enter/{code}", dependencies=[Anyone])
def enter(ctx: Ctx, request: Request, code: str, program: Program, next: str = "/") -> Response:
    """Sign in with a one-time link."""
    return _welcome(request, entry.enter(ctx, code, program), next)


@router.post("/enter")
def offer(ctx: Ctx, principal: Keyholder) -> dict[str, str]:
    """Create a one-time link; `shoal console` calls this with its key."""
    return {"path": f"/enter/{entry.offer(ctx, principal)}"}


def _welcome(request: Request, session: SessionView, next_path: str | None) -> Response:
    path = local_path(next_path)
    response = go(request, path) if is_htmx(request) else RedirectResponse(path, 303)
    set_session(response, request, session.token, session.expires_at)
    return response


def _caller(ctx: Context, request: Request) -> Any:
    from shoal.server.policy import identify

    with ctx.db.read() as session:
        return identify(session, request)
