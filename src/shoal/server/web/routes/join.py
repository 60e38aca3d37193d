"""The page behind a link to a swarm, open to everyone who has the link."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.errors import KeyExpired, NotFound, NotSignedIn
from shoal.server.context import Ctx
from shoal.server.policy import Anyone
from shoal.server.swarms import page as swarm_page
from shoal.server.web import swarms
from shoal.server.web.render import bare_page

router = APIRouter()


@router.get("/join/{token}", dependencies=[Anyone])
def join(ctx: Ctx, request: Request, token: str) -> Response:
    """Show how to join, and the progress of the swarm if it is public."""
    try:
        found = swarm_page.page(ctx, token, swarms.join_link(ctx, request, token))
    except (KeyExpired, NotSignedIn) as error:
        # Not a sign-in error for the browser: an account would not help here.
        raise NotFound(error.message, hint=error.hint) from None
    return bare_page(request, "join.html", {"page": found})
