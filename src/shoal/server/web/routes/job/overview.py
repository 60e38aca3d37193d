"""Pages of one job: overview, metrics, checkpoints, system. Its logs are in `logs`."""

from __future__ import annotations

import functools
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.jobs import JobView
from shoal.core.states import JobState
from shoal.server.artifacts import checkpoints
from shoal.server.context import Context, Ctx
from shoal.server.jobs import service as jobs
from shoal.server.metrics import reads as metric_reads
from shoal.server.policy import Access, Viewer, Worker
from shoal.server.queue import service as queue
from shoal.server.web.files import previews
from shoal.server.web.forms import done
from shoal.server.web.job import bug_capsules, frames, history, order, system_metrics, traceback
from shoal.server.web.job.key_numbers import key_numbers
from shoal.server.web.nav import workspace_path
from shoal.server.web.render import page, wants_json

router = APIRouter(prefix="/w/{workspace}")
_SHORT = 300
"""Longest queue that is explained within the page. A longer one takes a second and is loaded after the page."""
_PARTS = {"head": "_job_head.html", "why": "_why.html", "numbers": "_job_numbers.html"}


@router.get("/jobs/{job}")
def overview(ctx: Ctx, request: Request, access: Viewer, job: str, part: str = "") -> Response:
    """Show the state of a job, its history, and how to run it again."""
    view = jobs.get(ctx, access, job)
    data = {"job": view, "timeline": history.timeline(view), "rerun": history.rerun_command(view), "tab": "overview"}
    data["failure"] = failure = bug_capsules.newest(ctx, access, view) if not part else None
    has_trace = failure is not None and failure.traceback
    data["trace"] = None if part or has_trace else traceback.from_log(ctx, access, view)
    data["numbers"] = key_numbers(ctx, view.id) if part in ("", "numbers") else []
    data["short"] = len(ctx.live.waiting) <= _SHORT
    asked = part == "why" or wants_json(request) or (data["short"] and part != "head")
    data["why"] = queue.why(ctx, access, view.id) if asked and view.status == JobState.QUEUED else None
    data["order"] = order.drawing(ctx, access, view.id) if view.chain and not part else None
    shown = data if wants_json(request) else data | _helpers(ctx, access, view, traced=bool(has_trace or data["trace"]))
    return page(request, ctx, access, "job_overview.html", shown, part=_PARTS.get(part, "_job_overview.html"))


@router.get("/jobs/{job}/metrics")
def metrics(ctx: Ctx, request: Request, access: Viewer, job: str) -> Response:
    """Show the charts; their points come from the API."""
    data = _job(ctx, access, job, "metrics")
    if wants_json(request):
        data["metrics"] = metric_reads.names(ctx, access, job)
    return page(request, ctx, access, "job_metrics.html", data)


@router.get("/jobs/{job}/checkpoints")
def job_checkpoints(ctx: Ctx, request: Request, access: Viewer, job: str) -> Response:
    """Show the checkpoints of a job, newest first."""
    data = _job(ctx, access, job, "checkpoints")
    data["checkpoints"] = checkpoints.list_checkpoints(ctx, access, job)[::-1]
    return page(request, ctx, access, "job_checkpoints.html", data, part="_checkpoints.html")


@router.get("/jobs/{job}/system")
def system(ctx: Ctx, request: Request, access: Viewer, job: str) -> Response:
    """Show how the nodes of a job use their machines."""
    data = _job(ctx, access, job, "system")
    if wants_json(request):  # the page's charts load them as JSON
        data["samples"] = system_metrics.samples(ctx, access, job)
    return page(request, ctx, access, "job_system.html", data)


@router.get("/checkpoints")
def all_checkpoints(ctx: Ctx, request: Request, access: Viewer) -> Response:
    """Show the checkpoints of the whole workspace, newest first."""
    data = {"checkpoints": checkpoints.list_checkpoints(ctx, access, None)[::-1], "job": None}
    return page(request, ctx, access, "checkpoints.html", data, part="_checkpoints.html")


@router.post("/checkpoints/{checkpoint}/keep")
def keep(ctx: Ctx, request: Request, access: Worker, checkpoint: str) -> Response:
    """Protect a checkpoint from automatic deletion, or remove the protection."""
    kept = not checkpoints.get(ctx, access, checkpoint).kept
    checkpoints.keep(ctx, access, checkpoint, kept)
    text = "Kept: it will not be deleted automatically." if kept else "It may be deleted automatically again."
    return done(request, text, _listing(access))


@router.post("/checkpoints/{checkpoint}/delete")
def delete(ctx: Ctx, request: Request, access: Worker, checkpoint: str) -> Response:
    """Delete a checkpoint."""
    checkpoints.delete(ctx, access, checkpoint)
    return done(request, "Checkpoint deleted.", _listing(access))


def _helpers(ctx: Context, access: Access, job: JobView, *, traced: bool) -> dict[str, Any]:
    """Return functions for the template: `told_elsewhere` shortens reasons, `frames_of` splits a traceback at links."""
    paths = [file.path for file in previews.of_job(ctx, access, job.id).manifest.files] if traced else []
    return {
        "told_elsewhere": functools.partial(history.without_reason, job),
        "frames_of": functools.partial(frames.pieces, paths=paths),
    }


def _job(ctx: Context, access: Access, job: str, tab: str) -> dict[str, Any]:
    return {"job": jobs.get(ctx, access, job), "tab": tab}


def _listing(access: Access) -> str:
    return f"{workspace_path(access.workspace, access.workspace_id)}/checkpoints"
