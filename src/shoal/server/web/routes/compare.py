"""Several jobs side by side."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from shoal.server.context import Ctx
from shoal.server.policy import Viewer
from shoal.server.web import compare
from shoal.server.web.render import page

router = APIRouter(prefix="/w/{workspace}/compare")


@router.get("")
def side_by_side(
    ctx: Ctx,
    request: Request,
    access: Viewer,
    jobs: str = "",
    job: Annotated[list[str], Query(max_length=100)] = [],  # noqa: B006
    all: bool = False,
) -> Response:
    """Jobs named in `jobs`, with commas between, or one by one: charts over each other, differences, best values."""
    found = compare.compare(ctx, access, [*jobs.split(","), *job])
    return page(request, ctx, access, "compare.html", dict(found) | {"all": all}, part="_compare.html")
