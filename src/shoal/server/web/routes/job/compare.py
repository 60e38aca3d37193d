"""Comparison of several jobs side by side."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from shoal.server.context import Ctx
from shoal.server.policy import Viewer
from shoal.server.web.job import compare, diff
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
    part: str = "",
) -> Response:
    """Show common charts, differences and best values of the jobs in `jobs` (separated by commas) and `job`.

    With part=diff, show where the metrics of the first two begin to differ, and why.
    """
    named = [*jobs.split(","), *job]
    if part == "diff" and len(named) > 1:
        data = {"diff": diff.diff(ctx, access, named[0], named[1])}
        return page(request, ctx, access, "diff.html", data, part="_diff.html")
    found = compare.compare(ctx, access, named)
    return page(request, ctx, access, "compare.html", dict(found) | {"all": all}, part="_compare.html")
