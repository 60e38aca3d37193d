"""The list of jobs, and the actions on a job."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.core.queue import JobChange
from shoal.core.states import JobState
from shoal.server.artifacts import checkpoints
from shoal.server.context import Ctx
from shoal.server.jobs import service as jobs
from shoal.server.policy import Access, Viewer, Worker
from shoal.server.queue import service as queue
from shoal.server.web.forms import Fields, done, go, parse, parse_json
from shoal.server.web.nav import job_path, workspace_path
from shoal.server.web.render import page

router = APIRouter(prefix="/w/{workspace}")
_PAGE = 50


@router.get("/jobs")
def list_jobs(
    ctx: Ctx,
    request: Request,
    access: Viewer,
    status: JobState | Literal[""] = "",
    search: str = "",
    before: str | None = None,
    kind: Literal["job", "trial", "preflight", "any"] = "job",
) -> Response:
    """List the jobs of the workspace, newest first. Trials and preflights are shown only if they are asked for."""
    found = jobs.list_jobs(
        ctx, access, status=status or None, search=search or None, limit=_PAGE + 1, before=before,
        kind=None if kind == "any" else kind,
    )  # fmt: skip
    data = {
        "jobs": found[:_PAGE],
        "next": found[_PAGE - 1].id if len(found) > _PAGE else None,
        "status": status or None,
        "search": search,
        "kind": kind,
        "states": list(JobState),
        "first": before is None,
    }
    return page(request, ctx, access, "jobs.html", data, part="_jobs.html")


@router.post("/jobs/{job}/stop")
def stop(ctx: Ctx, request: Request, access: Worker, job: str) -> Response:
    """Ask a job to stop."""
    view = jobs.stop(ctx, access, job)
    return done(request, f"Stopping {view.name}.", _job(access, view.name, view.id))


@router.post("/jobs/{job}/resume")
def resume(ctx: Ctx, request: Request, access: Worker, job: str) -> Response:
    """Resume a stopped or failed job from its newest complete checkpoint."""
    view = jobs.resume(ctx, access, job)
    return done(request, f"{view.name} is queued again.", _job(access, view.name, view.id))


@router.post("/jobs/{job}/change")
def change(ctx: Ctx, request: Request, access: Worker, job: str, form: Fields) -> Response:
    """Change the request of a waiting job, as suggested on its page."""
    view = queue.change(ctx, access, job, parse_json(JobChange, form.get("change", "")))
    return done(request, f"{view.name} was changed.", _job(access, view.name, view.id))


@router.post("/jobs/{job}/delete")
def delete(ctx: Ctx, request: Request, access: Worker, job: str, form: Fields) -> Response:
    """Delete a finished job and all its data."""
    jobs.delete(ctx, access, job)
    listing = f"{_base(access)}/jobs"
    return go(request, listing) if form.get("then") == "list" else done(request, "Job deleted.", listing)


@router.post("/jobs/{job}/continue")
def continue_from(ctx: Ctx, request: Request, access: Worker, job: str, form: Fields) -> Response:
    """Submit a new job with the same settings that starts from one of this job's checkpoints."""
    old = jobs.get(ctx, access, job)
    checkpoint = checkpoints.get(ctx, access, form.get("checkpoint", ""))
    values = old.spec.model_dump() | {"name": form.get("name", "").strip(), "checkpoint": checkpoint.id}
    made = jobs.submit(ctx, access, parse(type(old.spec), **values))
    return go(request, _job(access, made.name, made.id))


def _base(access: Access) -> str:
    return workspace_path(access.workspace, access.workspace_id)


def _job(access: Access, name: str, ident: str) -> str:
    return job_path(_base(access), name, ident)
