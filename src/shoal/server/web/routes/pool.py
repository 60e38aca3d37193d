"""Machines, the queue, and what was used."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.server.context import Ctx
from shoal.server.policy import Reader
from shoal.server.web import overview
from shoal.server.web.render import page

router = APIRouter()


@router.get("/machines")
def machines(ctx: Ctx, request: Request, principal: Reader) -> Response:
    """The pool's machines, their slots, and what runs on them."""
    data = dict(overview.pool(ctx, principal))
    return page(request, ctx, principal, "machines.html", data, part="_machines.html")


@router.get("/queue")
def queue(ctx: Ctx, request: Request, principal: Reader) -> Response:
    """What waits, in order, and for what."""
    return page(request, ctx, principal, "queue.html", {"queue": overview.queue(ctx, principal)}, part="_queue.html")


@router.get("/usage")
def usage(ctx: Ctx, request: Request, principal: Reader) -> Response:
    """Slot time and bytes by workspace; the store as a whole for admins."""
    data = dict(overview.usage(ctx, principal)) | {"store": overview.store(ctx) if principal.is_admin else None}
    return page(request, ctx, principal, "usage.html", data)
