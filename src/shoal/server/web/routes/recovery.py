"""Pages for a lost password, and for confirming an e-mail address."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from shoal.core.errors import NotFound, ShoalError
from shoal.core.people import PasswordLost, PasswordRecovery
from shoal.server.context import Context, Ctx
from shoal.server.people import recovery
from shoal.server.policy import Anyone, Keyholder
from shoal.server.request_origin import Address
from shoal.server.web import entry
from shoal.server.web.forms import Fields, done, parse
from shoal.server.web.render import bare_page, page

router = APIRouter()


@router.get("/password-lost", dependencies=[Anyone])
def lost(ctx: Ctx, request: Request) -> Response:
    """Show the form that sends a mail."""
    return bare_page(request, "password_lost.html", _lost_data(ctx))


@router.post("/password-lost", dependencies=[Anyone])
def send_reset(ctx: Ctx, request: Request, form: Fields, address: Address) -> Response:
    """Send a mail, and show the same page whether or not there is such an account."""
    data = _lost_data(ctx, form.get("email", ""))
    try:
        body = parse(PasswordLost, email=data["email"])
        recovery.send_reset(ctx, body.email, address=address)
    except ShoalError as error:
        return bare_page(request, "password_lost.html", {**data, "error": error.message}, status=error.http_status)
    return bare_page(request, "password_lost.html", {**data, "sent": True})


def _lost_data(ctx: Context, email: str = "") -> dict[str, Any]:
    return {"sends_mail": ctx.mail.is_set_up, "email": email, "sent": False, "error": ""}


@router.get("/recover/{code}", dependencies=[Anyone])
def recover_page(ctx: Ctx, request: Request, code: str, address: Address) -> Response:
    """Show the form for a new password. It uses up nothing: mail programs open links by themselves."""
    email = recovery.check_code(ctx, code, address=address)
    return bare_page(request, "recover.html", {"email": email, "code": code, "error": ""})


@router.post("/recover/{code}", dependencies=[Anyone])
def recover(ctx: Ctx, request: Request, code: str, form: Fields, address: Address) -> Response:
    """Set a new password."""
    try:
        body = parse(PasswordRecovery, code=code, new_password=form.get("password", ""))
        email = recovery.recover(ctx, body, address=address)
    except NotFound:
        raise
    except ShoalError as error:
        data = {"email": form.get("email", ""), "code": code, "error": error.message}
        return bare_page(request, "recover.html", data, status=error.http_status)
    said = "Your password is set, and all sessions have ended. Sign in with it."
    return bare_page(request, "sign_in.html", entry.sign_in_data(ctx, "/", email=email, said=said))


@router.post("/settings/verify")
def send_verification(ctx: Ctx, request: Request, principal: Keyholder) -> Response:
    """Send a mail with a link that confirms the address."""
    recovery.send_verification(ctx, principal)
    return done(request, f"A mail is on its way to {principal.email}.", "/settings")


@router.get("/settings/verify/{code}")
def verify_page(ctx: Ctx, request: Request, principal: Keyholder, code: str) -> Response:
    """Ask for a click: mail programs open links by themselves."""
    return page(request, ctx, principal, "verify_email.html", {"code": code, "email": principal.email})


@router.post("/settings/verify/{code}")
def verify(ctx: Ctx, principal: Keyholder, code: str) -> Response:
    """Confirm the address."""
    recovery.verify(ctx, principal, code)
    return RedirectResponse("/settings", 303)
