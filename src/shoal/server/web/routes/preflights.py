"""Preflights of a draft, started from the new-job form."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.preflight import PreflightView
from shoal.server.context import Context, Ctx
from shoal.server.policy import Access, Worker
from shoal.server.preflight import service as preflights
from shoal.server.web.drafts.job import from_form, to_spec
from shoal.server.web.forms import Fields
from shoal.server.web.render import page

router = APIRouter(prefix="/w/{workspace}/jobs/new/preflight")
_PART = "_new_job_preflight.html"


@router.post("")
def start(ctx: Ctx, request: Request, access: Worker, fields: Fields) -> Response:
    """Start a preflight of what is in the form now."""
    return _show(ctx, request, access, preflights.start(ctx, access, to_spec(from_form(fields))))


@router.get("/{preflight}")
def show(ctx: Ctx, request: Request, access: Worker, preflight: str) -> Response:
    """Show the progress of a preflight; the page polls until it has finished."""
    view = preflights.get(ctx, access, preflight)
    if view.status.is_terminal:
        preflights.drop(ctx, access, view.id)
    return _show(ctx, request, access, view)


def _show(ctx: Context, request: Request, access: Access, view: PreflightView) -> Response:
    return page(request, ctx, access, _PART, {"preflight": view}, part=_PART)
