"""The stream that keeps list pages up to date."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.responses import JSONResponse, Response

from shoal.server.context import Ctx
from shoal.server.policy import Reader, identify
from shoal.server.web import live_updates
from shoal.server.web.render import wants_json

router = APIRouter()


@router.get("/live")
async def live(
    ctx: Ctx,
    request: Request,
    principal: Reader,
    after: Annotated[int | None, Query(ge=0, le=10**18)] = None,
    last_event_id: Annotated[str, Header()] = "",
) -> Response:
    """Stream server-sent events about the user's jobs, sweeps and swarms: `hello`, `job`, `sweep`, `swarm`, `gone`, `ping`.

    As JSON, return the jobs that are active now.
    """
    if wants_json(request):
        found = await run_in_threadpool(live_updates.now, ctx, principal)
        return JSONResponse(found.model_dump(mode="json"))
    if last_event_id.isascii() and last_event_id.isdigit():
        after = int(last_event_id[:18])

    def still_signed_in() -> None:
        with ctx.db.read() as session:
            identify(session, request)

    events = live_updates.stream(ctx, principal, after, still_signed_in)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)
