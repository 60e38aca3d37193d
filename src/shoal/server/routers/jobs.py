"""Training jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse

from shoal.core.attach import AttachAsk, AttachView, JupyterAsk, JupyterView
from shoal.core.jobs import JobSpec, JobSummary, JobView, LogPage
from shoal.core.schema import LEAST_INT, MOST_INT
from shoal.core.stacks import StacksAsked, StacksView
from shoal.core.states import JobState
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router
from shoal.server.services import attaches, downloads, jobs, jupyter, preflights, stacks, streams
from shoal.server.services import follow as following
from shoal.server.web import share

router = api_router("/workspaces/{workspace}/jobs", tags=["jobs"])
Limit = Annotated[int, Query(ge=1, le=1000)]
Stored = Annotated[int, Query(ge=LEAST_INT, le=MOST_INT)]


@router.post("", status_code=201)
def submit(ctx: Ctx, access: Worker, spec: JobSpec, preflight: str | None = None) -> JobView:
    """Queue a training job. Refused at once if it can never run. It takes over the report of `preflight`, which then goes."""
    return preflights.submit(ctx, access, spec, preflight)


@router.get("")
def list_jobs(
    ctx: Ctx,
    access: Viewer,
    status: JobState | None = None,
    search: str | None = None,
    limit: Limit = 100,
    before: str | None = None,
) -> list[JobSummary]:
    """Jobs of the workspace, newest first; `before` is the last id of the page before."""
    return jobs.list_jobs(ctx, access, status=status, search=search, limit=limit, before=before)


@router.get("/{job}")
def inspect(ctx: Ctx, access: Viewer, job: str) -> JobView:
    """One job with its attempts, nodes and events."""
    return jobs.get(ctx, access, job)


@router.post("/{job}/stop")
def stop(ctx: Ctx, access: Worker, job: str) -> JobView:
    """Ask a job to stop: SIGTERM, then SIGKILL after the grace period."""
    return jobs.stop(ctx, access, job)


@router.post("/{job}/resume")
def resume(ctx: Ctx, access: Worker, job: str) -> JobView:
    """Continue a stopped or failed job from its newest good checkpoint."""
    return jobs.resume(ctx, access, job)


@router.post("/{job}/stacks", status_code=202)
def ask_for_stacks(ctx: Ctx, access: Worker, job: str) -> StacksAsked:
    """Have all workers of a running job tell where they are. It goes on meanwhile."""
    return stacks.ask(ctx, access, job)


@router.get("/{job}/stacks")
def latest_stacks(ctx: Ctx, access: Viewer, job: str) -> StacksView:
    """Where the workers were when that was last asked for, or when the job was found to stand still."""
    return stacks.latest(ctx, access, job)


@router.post("/{job}/attach", status_code=202)
def attach(ctx: Ctx, access: Worker, job: str, ask: AttachAsk, request: Request) -> AttachView:
    """Have a node of a running job opened for a key; `is_ready` when ssh can get in."""
    return attaches.ask(ctx, access, job, ask, host=request.url.hostname or "")


@router.post("/{job}/jupyter", status_code=202)
def start_jupyter(ctx: Ctx, access: Worker, job: str, ask: JupyterAsk) -> JupyterView:
    """Have JupyterLab started on a node of a running job; `is_ready` when the console's page of it leads there."""
    return jupyter.ask(ctx, access, job, ask.node)


@router.delete("/{job}", status_code=204)
def delete(ctx: Ctx, access: Worker, job: str) -> None:
    """Remove a finished job and all it left."""
    jobs.delete(ctx, access, job)


@router.get("/{job}/checkpoint-archive")
def checkpoint_archive(ctx: Ctx, access: Viewer, job: str) -> StreamingResponse:
    """The files of a job's newest good checkpoint as a zip."""
    found = downloads.newest_archive(ctx, access, job)
    return StreamingResponse(found.body, found.status, found.headers, found.media_type)


@router.get("/{job}/share")
def share_job(ctx: Ctx, access: Viewer, job: str) -> Response:
    """The job as one HTML file that opens without a server or a network. Values of secrets are not in it."""
    found = share.share(ctx, access, job)
    headers = downloads.plain_headers(f"{found.name}.html") | {"Cache-Control": "no-store"}
    return Response(found.body, media_type="text/html; charset=utf-8", headers=headers)


@router.get("/{job}/logs")
def logs(
    ctx: Ctx,
    access: Viewer,
    job: str,
    after: Stored = 0,
    node: Stored | None = None,
    rank: Stored | None = None,
    since: float | None = None,
    attempt: Stored | None = None,
) -> LogPage:
    """A page of log lines; give `cursor` back as `after` for the next."""
    return streams.read_logs(ctx, access, job, after=after, node=node, rank=rank, since=since, attempt=attempt)


@router.get("/{job}/follow")
async def follow(
    ctx: Ctx,
    access: Viewer,
    job: str,
    after: Stored = 0,
    node: Stored | None = None,
    rank: Stored | None = None,
    since: float | None = None,
) -> StreamingResponse:
    """Server-sent events: `log`, `job` on every change, `end` when the job is over and all lines were sent."""
    events: AsyncIterator[str] = await following.follow(
        ctx, access, job, after=after, node=node, rank=rank, since=since
    )
    return StreamingResponse(
        events, media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )
