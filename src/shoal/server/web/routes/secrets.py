"""Secrets of a workspace. Values can be written but are never shown."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.people import SecretSet
from shoal.server.context import Ctx
from shoal.server.people import secrets
from shoal.server.policy import Viewer, Worker
from shoal.server.web.forms import Fields, done, parse
from shoal.server.web.nav import base_path
from shoal.server.web.render import page

router = APIRouter(prefix="/w/{workspace}/secrets")


@router.get("")
def list_secrets(ctx: Ctx, request: Request, access: Viewer) -> Response:
    """Show the names of the secrets."""
    data = {"secrets": secrets.list_secrets(ctx, access)}
    return page(request, ctx, access, "secrets.html", data, part="_secrets.html")


@router.post("")
def set_secret(ctx: Ctx, request: Request, access: Worker, form: Fields) -> Response:
    """Create a secret, or replace its value."""
    body = parse(SecretSet, name=form.get("name", "").strip(), value=form.get("value", ""))
    made = secrets.set_secret(ctx, access, body)
    return done(request, f"{made.name} is set.", request.url.path)


@router.post("/{name}/delete")
def delete(ctx: Ctx, request: Request, access: Worker, name: str) -> Response:
    """Delete a secret."""
    secrets.delete_secret(ctx, access, name)
    return done(request, f"{name} was deleted.", f"{base_path(access)}/secrets")
