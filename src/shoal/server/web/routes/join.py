"""The page behind a link to a swarm, for whoever has the link."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.errors import KeyExpired, NotFound, NotSignedIn
from shoal.server.context import Ctx
from shoal.server.policy import Anyone
from shoal.server.services import swarm_page
from shoal.server.web.render import bare_page

router = APIRouter()


@router.get("/join/{token}", dependencies=[Anyone])
def join(ctx: Ctx, request: Request, token: str) -> Response:
    """How to join, and how far the swarm is if its owner wants that seen."""
    try:
        found = swarm_page.page(ctx, token, str(request.base_url))
    except (KeyExpired, NotSignedIn) as error:
        # Signing in would not help: nothing here is of an account.
        raise NotFound(error.message, hint=error.hint) from None
    return bare_page(request, "join.html", {"page": found})
