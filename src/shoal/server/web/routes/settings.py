"""Settings of the user: name, password, theme and open sessions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from shoal.core.people import PasswordChange, ProfileChange
from shoal.server.context import Ctx
from shoal.server.people import sessions, sign_in
from shoal.server.people.oidc import identities
from shoal.server.policy import Keyholder, Reader
from shoal.server.request_origin import Address
from shoal.server.web import entry
from shoal.server.web.format import plural
from shoal.server.web.forms import Fields, done, parse
from shoal.server.web.render import page

router = APIRouter()
_PAGE = "/settings"


@router.get(_PAGE)
def settings(ctx: Ctx, request: Request, principal: Reader) -> Response:
    """Show the user's account and open sessions."""
    data = {
        "user": sign_in.me(ctx, principal),
        "has_password": entry.has_password(ctx, principal),
        "services": identities.list_connected(ctx, principal),
        "sends_mail": ctx.mail.is_set_up,
        "sessions": sessions.list_sessions(ctx, principal),
    }
    return page(request, ctx, principal, "settings.html", data, part="_sessions.html")


@router.get("/account")
def account(_: Reader) -> Response:
    """Redirect from the former address of the settings."""
    return RedirectResponse(_PAGE, 303)


@router.post("/settings/profile")
def change_profile(ctx: Ctx, request: Request, principal: Keyholder, form: Fields) -> Response:
    """Change the display name."""
    sign_in.change_profile(ctx, principal, parse(ProfileChange, name=form.get("name", "")))
    return done(request, "Saved.", _PAGE)


@router.post("/settings/password")
def change_password(ctx: Ctx, request: Request, principal: Keyholder, form: Fields, address: Address) -> Response:
    """Change the password and end all other sessions."""
    body = parse(PasswordChange, old_password=form.get("old", ""), new_password=form.get("new", ""))
    sign_in.change_password(ctx, principal, body, address=address)
    return done(request, "Password changed. Every other session has ended.", _PAGE)


@router.post("/settings/sessions/end-others")
def end_others(ctx: Ctx, request: Request, principal: Keyholder) -> Response:
    """End all sessions except this one."""
    return done(request, f"{plural(sessions.end_others(ctx, principal), 'session')} ended.", _PAGE)


@router.post("/settings/sessions/{session}/end")
def end_session(ctx: Ctx, request: Request, principal: Keyholder, session: str) -> Response:
    """End one session."""
    sessions.end_session(ctx, principal, session)
    return done(request, "Session ended.", _PAGE)


@router.get("/settings/terminal")
def terminal(ctx: Ctx, request: Request, principal: Keyholder) -> Response:
    """Offer a code for `shoal login --browser`."""
    return page(request, ctx, principal, "terminal.html", {"email": principal.email, "code": ""})


@router.post("/settings/terminal")
def show_code(ctx: Ctx, request: Request, principal: Keyholder) -> Response:
    """Show a code that signs in a terminal once, within two minutes."""
    data = {"email": principal.email, "code": entry.offer(ctx, principal)}
    return page(request, ctx, principal, "terminal.html", data)
