"""Training jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse

from shoal.core.attach import AttachRequest, AttachView, JupyterRequest, JupyterView
from shoal.core.diffs import JobDiff
from shoal.core.jobs import JobSpec, JobSummary, JobView, LogPage
from shoal.core.schema import LEAST_INT, MOST_INT
from shoal.core.stacks import StacksRequested, StacksView
from shoal.core.states import JobState
from shoal.server.artifacts import downloads
from shoal.server.context import Ctx
from shoal.server.jobs import attach as attaches
from shoal.server.jobs import follow as following
from shoal.server.jobs import service as jobs
from shoal.server.jobs import stacks, streams
from shoal.server.jupyter import service as jupyter
from shoal.server.policy import Viewer, Worker
from shoal.server.preflight import service as preflights
from shoal.server.routers import api_router
from shoal.server.web.job import diff, share

router = api_router("/workspaces/{workspace}/jobs", tags=["jobs"])
Limit = Annotated[int, Query(ge=1, le=1000)]
Stored = Annotated[int, Query(ge=LEAST_INT, le=MOST_INT)]


@router.post("", status_code=201)
def submit(
    ctx: Ctx, access: Worker, spec: JobSpec, preflight: str | None = None, replace: bool = False, reuse: bool = False
) -> JobView:
    """Submit a training job to the queue. Refused immediately if it can never run. With `preflight` (an id), the job takes
    over the report of that preflight, which is then removed. With `replace`, the finished job of the same name is deleted.
    With `reuse`, a job that succeeded with the same code, inputs and options is returned instead, and nothing is submitted."""
    return preflights.submit(ctx, access, spec, preflight, replace=replace, reuse_same=reuse)


@router.get("")
def list_jobs(
    ctx: Ctx,
    access: Viewer,
    status: JobState | None = None,
    search: str | None = None,
    limit: Limit = 100,
    before: str | None = None,
) -> list[JobSummary]:
    """List the jobs of the workspace, newest first; `before` is the last id of the previous page."""
    return jobs.list_jobs(ctx, access, status=status, search=search, limit=limit, before=before)


@router.get("/{job}")
def inspect(ctx: Ctx, access: Viewer, job: str) -> JobView:
    """Return one job with its attempts, nodes and events."""
    return jobs.get(ctx, access, job)


@router.post("/{job}/stop")
def stop(ctx: Ctx, access: Worker, job: str) -> JobView:
    """Stop a job: its workers get SIGTERM, then SIGKILL after the grace period."""
    return jobs.stop(ctx, access, job)


@router.post("/{job}/resume")
def resume(ctx: Ctx, access: Worker, job: str) -> JobView:
    """Resume a stopped or failed job from its newest complete checkpoint."""
    return jobs.resume(ctx, access, job)


@router.post("/{job}/stacks", status_code=202)
def request_stacks(ctx: Ctx, access: Worker, job: str) -> StacksRequested:
    """Request the current stacks of all workers of a running job. The job continues to run."""
    return stacks.request(ctx, access, job)


@router.get("/{job}/stacks")
def latest_stacks(ctx: Ctx, access: Viewer, job: str) -> StacksView:
    """Return the last collected stacks of the workers. They are collected on request and when a job stalls."""
    return stacks.latest(ctx, access, job)


@router.post("/{job}/attach", status_code=202)
def attach(ctx: Ctx, access: Worker, job: str, ask: AttachRequest, request: Request) -> AttachView:
    """Open a node of a running job for SSH access with a public key. Repeat until `is_ready` is true."""
    return attaches.request_shell(ctx, access, job, ask, host=request.url.hostname or "")


@router.post("/{job}/jupyter", status_code=202)
def start_jupyter(ctx: Ctx, access: Worker, job: str, ask: JupyterRequest) -> JupyterView:
    """Start JupyterLab on a node of a running job. Repeat until `is_ready` is true; then open it in the console."""
    return jupyter.start(ctx, access, job, ask.node)


@router.delete("/{job}", status_code=204)
def delete(ctx: Ctx, access: Worker, job: str) -> None:
    """Delete a finished job and all its data."""
    jobs.delete(ctx, access, job)


@router.get("/{job}/checkpoint-archive")
def checkpoint_archive(ctx: Ctx, access: Viewer, job: str) -> StreamingResponse:
    """Download the files of a job's newest complete checkpoint as a zip archive."""
    found = downloads.newest_archive(ctx, access, job)
    return StreamingResponse(found.body, found.status, found.headers, found.media_type)


@router.get("/{job}/share")
def share_job(ctx: Ctx, access: Viewer, job: str) -> Response:
    """Export the job as a single HTML file that can be viewed offline. It does not contain values of secrets."""
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
    """Return a page of log lines. Pass the returned `cursor` as `after` to get the next page."""
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
    """Follow a job with server-sent events: `log` for new lines, `job` on every change, and `end` once the job is finished
    and all lines were sent."""
    events: AsyncIterator[str] = await following.follow(
        ctx, access, job, after=after, node=node, rank=rank, since=since
    )
    return StreamingResponse(
        events, media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


@router.get("/{job}/diff/{other}")
def job_diff(ctx: Ctx, access: Viewer, job: str, other: str) -> JobDiff:
    """Compare two jobs: code, settings, data, environment, hardware, seed and results, with the likely cause of a
    difference."""
    return diff.diff(ctx, access, job, other)
