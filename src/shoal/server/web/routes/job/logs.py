"""The log of a job."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response, StreamingResponse

from shoal.core.schema import MOST_INT, MOST_TIME_S
from shoal.server.context import Ctx
from shoal.server.jobs import service as jobs
from shoal.server.policy import Viewer
from shoal.server.web.job import log_search, logs
from shoal.server.web.render import page, wants_json

router = APIRouter(prefix="/w/{workspace}/jobs/{job}/logs")


Part = Annotated[int | None, Query(ge=0, le=MOST_INT)]


def _filter(attempt: Part = None, node: Part = None, rank: Part = None) -> logs.Filter:
    return logs.Filter(attempt=attempt, node=node, rank=rank)


Chosen = Annotated[logs.Filter, Depends(_filter)]
Place = Annotated[int, Query(ge=0, le=2**53)]


@router.get("")
def log(ctx: Ctx, request: Request, access: Viewer, job: str, chosen: Chosen) -> Response:
    """Show the end of the log and follow it from there."""
    data = {
        "job": jobs.get(ctx, access, job),
        "tab": "logs",
        "chosen": {"attempt": chosen.attempt, "node": chosen.node, "rank": chosen.rank},
    }
    if wants_json(request):  # the page loads its lines from `lines`
        data["log"] = logs.tail(ctx, access, job, chosen)
    return page(request, ctx, access, "job_logs.html", data)


@router.get("/lines")
def lines(
    ctx: Ctx,
    access: Viewer,
    job: str,
    chosen: Chosen,
    before: Place | None = None,
    after: Place | None = None,
    around: Place | None = None,
    time: Annotated[float | None, Query(ge=0, le=MOST_TIME_S, allow_inf_nan=False)] = None,
) -> logs.LogSlice:
    """Return a part of the log: before, after or around a position, around a time, or the end."""
    if time is not None:
        around = logs.place_at(ctx, access, job, chosen, time)
    if around is not None:
        return logs.around(ctx, access, job, chosen, around)
    if after is not None:
        return logs.following(ctx, access, job, chosen, after)
    return logs.tail(ctx, access, job, chosen, before=before)


@router.get("/search")
def search(
    ctx: Ctx, access: Viewer, job: str, chosen: Chosen, q: Annotated[str, Query(min_length=1, max_length=500)],
    after: Place = 0,
) -> log_search.Hits:  # fmt: skip
    """Return lines that contain a text."""
    return log_search.search(ctx, access, job, chosen, q, after=after)


@router.get("/first-error")
def first_error(ctx: Ctx, access: Viewer, job: str, chosen: Chosen, after: Place = 0) -> log_search.Hits:
    """Return the first line that looks like an error."""
    return log_search.first_error(ctx, access, job, chosen, after=after)


@router.get("/download")
def download(ctx: Ctx, access: Viewer, job: str, chosen: Chosen, places: bool = False) -> StreamingResponse:
    """Download the whole log as a text file; `places` puts the position of each line before it, for searches in the browser."""
    name, pieces = logs.download(ctx, access, job, chosen, with_places=places)
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}.log"}
    return StreamingResponse(
        pieces, media_type="text/plain; charset=utf-8", headers=headers | {"X-Content-Type-Options": "nosniff"}
    )
