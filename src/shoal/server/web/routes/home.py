"""The home page."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.server.context import Ctx
from shoal.server.policy import Reader
from shoal.server.web import overview
from shoal.server.web.render import page

router = APIRouter()


@router.get("/")
def home(ctx: Ctx, request: Request, principal: Reader) -> Response:
    """Show active and recent jobs, problems that need attention, and free machines."""
    return page(request, ctx, principal, "home.html", dict(overview.home(ctx, principal)), part="_home.html")
