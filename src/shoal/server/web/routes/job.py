"""One job: overview, metrics, checkpoints, system. Its logs are in `logs`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.states import JobState
from shoal.server.context import Context, Ctx
from shoal.server.policy import Access, Viewer, Worker
from shoal.server.services import checkpoints, jobs, metric_reads, queue
from shoal.server.web import capsules, samples, story
from shoal.server.web.forms import done
from shoal.server.web.nav import workspace_path
from shoal.server.web.render import page, wants_json

router = APIRouter(prefix="/w/{workspace}")
_SHORT = 300
"""Jobs in a queue that is explained at once; a longer one takes a second, and the page comes first."""
_PARTS = {"head": "_job_head.html", "why": "_why.html"}


@router.get("/jobs/{job}")
def overview(ctx: Ctx, request: Request, access: Viewer, job: str, part: str = "") -> Response:
    """How it is going, how it got there, and how to run it again."""
    view = jobs.get(ctx, access, job)
    data = {"job": view, "timeline": story.timeline(view), "rerun": story.rerun_command(view), "tab": "overview"}
    data["failure"] = capsules.newest(ctx, access, view) if not part else None
    data["short"] = len(ctx.live.waiting) <= _SHORT
    asked = part == "why" or wants_json(request) or (data["short"] and part != "head")
    data["why"] = queue.why(ctx, access, view.id) if asked and view.status == JobState.QUEUED else None
    return page(request, ctx, access, "job_overview.html", data, part=_PARTS.get(part, "_job_overview.html"))


@router.get("/jobs/{job}/metrics")
def metrics(ctx: Ctx, request: Request, access: Viewer, job: str) -> Response:
    """Charts; their points come from the API."""
    data = _job(ctx, access, job, "metrics")
    if wants_json(request):
        data["metrics"] = metric_reads.names(ctx, access, job)
    return page(request, ctx, access, "job_metrics.html", data)


@router.get("/jobs/{job}/checkpoints")
def job_checkpoints(ctx: Ctx, request: Request, access: Viewer, job: str) -> Response:
    """What it saved."""
    data = _job(ctx, access, job, "checkpoints")
    data["checkpoints"] = checkpoints.list_checkpoints(ctx, access, job)[::-1]
    return page(request, ctx, access, "job_checkpoints.html", data, part="_checkpoints.html")


@router.get("/jobs/{job}/system")
def system(ctx: Ctx, request: Request, access: Viewer, job: str) -> Response:
    """How its nodes use their machines."""
    data = _job(ctx, access, job, "system")
    if wants_json(request):  # which is where the page's charts get them
        data["samples"] = samples.samples(ctx, access, job)
    return page(request, ctx, access, "job_system.html", data)


@router.get("/checkpoints")
def all_checkpoints(ctx: Ctx, request: Request, access: Viewer) -> Response:
    """Checkpoints of the whole workspace, newest first."""
    data = {"checkpoints": checkpoints.list_checkpoints(ctx, access, None)[::-1], "job": None}
    return page(request, ctx, access, "checkpoints.html", data, part="_checkpoints.html")


@router.post("/checkpoints/{checkpoint}/keep")
def keep(ctx: Ctx, request: Request, access: Worker, checkpoint: str) -> Response:
    """Protect a checkpoint from retention, or stop doing so."""
    kept = not checkpoints.get(ctx, access, checkpoint).kept
    checkpoints.keep(ctx, access, checkpoint, kept)
    text = "Kept: retention will not remove it." if kept else "Retention may remove it again."
    return done(request, text, _listing(access))


@router.post("/checkpoints/{checkpoint}/delete")
def delete(ctx: Ctx, request: Request, access: Worker, checkpoint: str) -> Response:
    """Remove a checkpoint."""
    checkpoints.delete(ctx, access, checkpoint)
    return done(request, "Checkpoint deleted.", _listing(access))


def _job(ctx: Context, access: Access, job: str, tab: str) -> dict[str, Any]:
    return {"job": jobs.get(ctx, access, job), "tab": tab}


def _listing(access: Access) -> str:
    return f"{workspace_path(access.workspace, access.workspace_id)}/checkpoints"
