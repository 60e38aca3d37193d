"""Sweeps: the list, one sweep with its trials, and the actions on it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from shoal.core.sweeps import TrialOrder
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.sweeps import service
from shoal.server.web import sweeps
from shoal.server.web.forms import Fields, done, go
from shoal.server.web.nav import base_path, sweep_path
from shoal.server.web.render import page, wants_json

router = APIRouter(prefix="/w/{workspace}/sweeps")
_LISTED = 200
_PAGE = 50


@router.get("")
def list_sweeps(ctx: Ctx, request: Request, access: Viewer) -> Response:
    """List the sweeps of the workspace, newest first."""
    data = {"sweeps": service.summaries(ctx, access, limit=_LISTED)}
    return page(request, ctx, access, "sweeps.html", data, part="_sweeps.html")


@router.get("/{sweep}")
def one(
    ctx: Ctx,
    request: Request,
    access: Viewer,
    sweep: str,
    order: TrialOrder = "number",
    after: Annotated[int | None, Query(ge=0)] = None,
    part: Literal["head", "trials"] = "head",
) -> Response:
    """Show the progress of a sweep and its trials; as JSON, also the points for the charts."""
    view = service.get(ctx, access, sweep)
    found = service.trials(ctx, access, view.id, order=order, limit=_PAGE + 1, after=after)
    data = sweeps.page_data(ctx, access, view) | {
        "trials": found[:_PAGE],
        "order": order,
        "next": found[_PAGE - 1].number if len(found) > _PAGE else None,
        "first": after is None,
    }
    if wants_json(request):
        data["points"] = sweeps.points(ctx, view)
    name = {"head": "_sweep_head.html", "trials": "_trials.html"}[part]
    return page(request, ctx, access, "sweep.html", data, part=name)


@router.post("/{sweep}/stop")
def stop(ctx: Ctx, request: Request, access: Worker, sweep: str) -> Response:
    """Stop a sweep: start no more trials, and stop the running ones."""
    view = service.stop(ctx, access, sweep)
    return done(request, f"Stopping {view.name}.", sweep_path(base_path(access), view.name, view.id))


@router.post("/{sweep}/rerun")
def rerun(ctx: Ctx, request: Request, access: Worker, sweep: str, form: Fields) -> Response:
    """Continue a sweep that has ended; with `failed`, run its failed trials again."""
    view = service.rerun(ctx, access, sweep, failed=form.get("failed") == "1")
    return done(request, f"{view.name} is running again.", sweep_path(base_path(access), view.name, view.id))


@router.post("/{sweep}/delete")
def delete(ctx: Ctx, request: Request, access: Worker, sweep: str, form: Fields) -> Response:
    """Delete a sweep that has ended; with `jobs`, also its jobs."""
    service.delete(ctx, access, sweep, jobs=form.get("jobs") == "1")
    listing = f"{base_path(access)}/sweeps"
    return go(request, listing) if form.get("then") == "list" else done(request, "Sweep deleted.", listing)
