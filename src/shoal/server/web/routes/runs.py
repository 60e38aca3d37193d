"""The table of runs: the front door of a workspace. Its rows come from the API; the address holds its whole state."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from shoal.server.context import Ctx
from shoal.server.policy import Viewer
from shoal.server.runs import query as run_query
from shoal.server.runs import saved_views
from shoal.server.web.job.compare import MOST_JOBS
from shoal.server.web.render import page, wants_json

router = APIRouter(prefix="/w/{workspace}")
Names = Annotated[list[str], Query(max_length=50)]


@router.get("/runs")
def runs(
    ctx: Ctx,
    request: Request,
    access: Viewer,
    q: Annotated[str, Query(max_length=2000)] = "",
    sort: Annotated[str, Query(max_length=200)] = "",
    column: Names = [],  # noqa: B006
    group: Names = [],  # noqa: B006
) -> Response:
    """Show all runs of the workspace, filtered, sorted and grouped as the address says."""
    data = {
        "columns": run_query.columns(ctx, access), "views": saved_views.list_views(ctx, access), "q": q,
        "most_compared": MOST_JOBS,
    }  # fmt: skip
    if wants_json(request):
        found = run_query.query(ctx, access, q=q, sort=sort, columns=column, group=group)
        # Parameters may hold secrets, which the API hides; here only what people and jobs are called is shown.
        for row in found.rows:
            row.values = {}
        data["runs"] = found.rows
    return page(request, ctx, access, "runs.html", data)
