"""Access from the console to the JupyterLab of a running job, which is served from a separate origin."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from shoal.server.context import Ctx
from shoal.server.jobs import service as jobs
from shoal.server.jupyter import ports
from shoal.server.jupyter import service as jupyter
from shoal.server.policy import Worker
from shoal.server.web.render import page, wants_json

router = APIRouter(prefix="/w/{workspace}/jobs/{job}/jupyter")
_AGAIN_S = "1"


@router.get("")
def open_jupyter(
    ctx: Ctx, request: Request, access: Worker, job: str, node: Annotated[int, Query(ge=0)] = 0
) -> Response:
    """Start JupyterLab if it does not run yet; once it does, redirect this browser to it."""
    if wants_json(request):
        return page(request, ctx, access, "job_jupyter.html", jupyter.start(ctx, access, job, node).model_dump())
    found = jupyter.enter(ctx, access, job, node)
    if found is not None:
        lab, code = found
        origin = ports.url(ctx, lab, scheme=request.url.scheme, host=request.url.hostname or "")
        return RedirectResponse(f"{origin}/_shoal/enter/{code}", 303)
    waiting = page(request, ctx, access, "job_jupyter.html", {"job": jobs.get(ctx, access, job)})
    waiting.headers["Refresh"] = _AGAIN_S
    return waiting
