"""The first steps of a job that is still a draft, tried from the form."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.preflight import PreflightView
from shoal.server.context import Context, Ctx
from shoal.server.policy import Access, Worker
from shoal.server.services import preflights
from shoal.server.web.drafts import from_form, to_spec
from shoal.server.web.forms import Fields
from shoal.server.web.render import page

router = APIRouter(prefix="/w/{workspace}/jobs/new/preflight")
_PART = "_new_job_preflight.html"


@router.post("")
def start(ctx: Ctx, request: Request, access: Worker, fields: Fields) -> Response:
    """Try what is in the form now."""
    return _show(ctx, request, access, preflights.start(ctx, access, to_spec(from_form(fields))))


@router.get("/{preflight}")
def look(ctx: Ctx, request: Request, access: Worker, preflight: str) -> Response:
    """How it goes; asked for again until it is over."""
    view = preflights.get(ctx, access, preflight)
    if view.status.is_terminal:
        preflights.drop(ctx, access, view.id)
    return _show(ctx, request, access, view)


def _show(ctx: Context, request: Request, access: Access, view: PreflightView) -> Response:
    return page(request, ctx, access, _PART, {"preflight": view}, part=_PART)
