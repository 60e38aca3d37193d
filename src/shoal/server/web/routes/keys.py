"""API keys."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.people import KeyCreate, Scope
from shoal.core.schema import utcnow
from shoal.server.context import Ctx
from shoal.server.people import keys
from shoal.server.policy import Keyholder, Reader
from shoal.server.web.forms import Fields, days_of, done, parse
from shoal.server.web.render import page

router = APIRouter(prefix="/keys")
_DAY = 86_400


@router.get("")
def list_keys(ctx: Ctx, request: Request, principal: Reader) -> Response:
    """List the user's API keys, valid ones first."""
    now = utcnow()
    found = keys.list_keys(ctx, principal)
    live = [k for k in found if not k.revoked_at and not (k.expires_at and k.expires_at <= now)]
    data = {"keys": live, "gone": [k for k in found if k not in live], "scopes": list(Scope)}
    return page(request, ctx, principal, "keys.html", data, part="_keys.html")


@router.post("")
def create(ctx: Ctx, request: Request, principal: Keyholder, form: Fields) -> Response:
    """Create a key and show it once."""
    days = form.get("days", "")
    body = parse(
        KeyCreate,
        name=form.get("name", "").strip(),
        scopes=form.all("scope"),
        expires_in_s=days_of(days) * _DAY or None,
    )
    made = keys.create_key(ctx, principal, body)
    return page(request, ctx, principal, "key_created.html", {"key": made}, part="_key_created.html", status=201)


@router.post("/{key}/revoke")
def revoke(ctx: Ctx, request: Request, principal: Keyholder, key: str) -> Response:
    """Revoke a key. Takes effect immediately."""
    keys.revoke_key(ctx, principal, key)
    return done(request, "Key revoked.", "/keys")
