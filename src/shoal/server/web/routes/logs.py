"""A job's log."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response, StreamingResponse

from shoal.core.schema import MOST_INT
from shoal.server.context import Ctx
from shoal.server.policy import Viewer
from shoal.server.services import jobs
from shoal.server.web import log_search, logs
from shoal.server.web.render import page, wants_json

router = APIRouter(prefix="/w/{workspace}/jobs/{job}/logs")


Part = Annotated[int | None, Query(ge=0, le=MOST_INT)]


def _filter(attempt: Part = None, node: Part = None, rank: Part = None) -> logs.Filter:
    return logs.Filter(attempt=attempt, node=node, rank=rank)


Chosen = Annotated[logs.Filter, Depends(_filter)]
Place = Annotated[int, Query(ge=0, le=2**53)]


@router.get("")
def log(ctx: Ctx, request: Request, access: Viewer, job: str, chosen: Chosen) -> Response:
    """The end of the log, to be followed from there."""
    data = {
        "job": jobs.get(ctx, access, job),
        "tab": "logs",
        "chosen": {"attempt": chosen.attempt, "node": chosen.node, "rank": chosen.rank},
    }
    if wants_json(request):  # the page asks for its lines by `lines`
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
) -> logs.LogSlice:
    """A stretch of the log: before or after a place, around one, or the end."""
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
    """Lines that hold a text."""
    return log_search.search(ctx, access, job, chosen, q, after=after)


@router.get("/first-error")
def first_error(ctx: Ctx, access: Viewer, job: str, chosen: Chosen, after: Place = 0) -> log_search.Hits:
    """Where things began to go wrong, by the look of it."""
    return log_search.first_error(ctx, access, job, chosen, after=after)


@router.get("/download")
def download(ctx: Ctx, access: Viewer, job: str, chosen: Chosen) -> StreamingResponse:
    """All of it as a text file."""
    name, pieces = logs.download(ctx, access, job, chosen)
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}.log"}
    return StreamingResponse(
        pieces, media_type="text/plain; charset=utf-8", headers=headers | {"X-Content-Type-Options": "nosniff"}
    )
