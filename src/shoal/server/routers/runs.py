"""Runs made elsewhere, brought in by `shoal sync` and `shoal training import`."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Request
from fastapi.concurrency import run_in_threadpool

from shoal.core.agents import SegmentReply
from shoal.core.bugs import BugCommit, BugCommitted
from shoal.core.checkpoints import CheckpointCommit, CheckpointCommitted
from shoal.core.jobs import JobSummary
from shoal.core.metrics import MediaCommit, MediaCommitted, RunImport, RunImported, RunState
from shoal.core.schema import MOST_INT
from shoal.server.context import Ctx
from shoal.server.policy import Worker
from shoal.server.routers import api_router
from shoal.server.services import runs

router = api_router("/workspaces/{workspace}", tags=["runs"])
PREFIX = "/jobs/{job}/import"


@router.post("/imports")
def begin(ctx: Ctx, access: Worker, request: RunImport) -> RunImported:
    """The job of a run made elsewhere, made now unless it was before; and what of the run is here already."""
    return runs.begin(ctx, access, request)


@router.post(PREFIX + "/segments/{stream}")
async def segment(
    ctx: Ctx,
    access: Worker,
    job: str,
    stream: Literal["log", "metric"],
    part: Annotated[str, Query(min_length=1, max_length=200)],
    seq_first: Annotated[int, Query(ge=0, le=MOST_INT)],
    count: Annotated[int, Query(ge=1, le=MOST_INT)],
    request: Request,
) -> SegmentReply:
    """Lines of one file (zstd of JSON lines), each stored once by its number. `part` is the rank for metrics, else the file."""
    body = await request.body()
    return await run_in_threadpool(runs.append, ctx, access, job, stream, part, seq_first, count, body)


@router.post(PREFIX + "/checkpoints")
def checkpoint(ctx: Ctx, access: Worker, job: str, request: CheckpointCommit) -> CheckpointCommitted:
    """A complete checkpoint of the run; `missing` lists chunks to upload first."""
    return runs.capture(ctx, access, job, request)


@router.post(PREFIX + "/media")
def medium(ctx: Ctx, access: Worker, job: str, request: MediaCommit) -> MediaCommitted:
    """A picture, figure or table of the run; `missing` lists chunks to upload first."""
    return runs.commit_media(ctx, access, job, request)


@router.post(PREFIX + "/bugs")
def bug(ctx: Ctx, access: Worker, job: str, request: BugCommit) -> BugCommitted:
    """A step of the run that failed; `missing` lists chunks of its capsule to upload first."""
    return runs.commit_bug(ctx, access, job, request)


@router.post(PREFIX + "/state")
def state(ctx: Ctx, access: Worker, job: str, request: RunState) -> JobSummary:
    """How far the run is, or how it ended."""
    return runs.set_state(ctx, access, job, request)
