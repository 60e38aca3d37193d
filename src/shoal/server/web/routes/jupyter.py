"""The way from the console to the JupyterLab of a running job, which is served from an origin of its own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from shoal.server import jupyter as labs
from shoal.server.context import Ctx
from shoal.server.policy import Worker
from shoal.server.services import jobs, jupyter
from shoal.server.web.render import page, wants_json

router = APIRouter(prefix="/w/{workspace}/jobs/{job}/jupyter")
_AGAIN_S = "1"


@router.get("")
def open_jupyter(
    ctx: Ctx, request: Request, access: Worker, job: str, node: Annotated[int, Query(ge=0)] = 0
) -> Response:
    """Start it if it does not run, and let this browser in, once it does."""
    if wants_json(request):
        return page(request, ctx, access, "job_jupyter.html", jupyter.ask(ctx, access, job, node).model_dump())
    found = jupyter.enter(ctx, access, job, node)
    if found is not None:
        lab, code = found
        origin = labs.url(ctx, lab, scheme=request.url.scheme, host=request.url.hostname or "")
        return RedirectResponse(f"{origin}/_shoal/enter/{code}", 303)
    waiting = page(request, ctx, access, "job_jupyter.html", {"job": jobs.get(ctx, access, job)})
    waiting.headers["Refresh"] = _AGAIN_S
    return waiting
