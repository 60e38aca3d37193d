"""Routes for agents. Their token opens these routes and no others, for one node of one attempt.

It ends with the node: from then on only what is left of its own reports is taken.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from shoal.core.agents import BeatReply, BeatRequest, JoinReply, JoinRequest, SegmentReply
from shoal.core.attach import AttachFetch, AttachOrder
from shoal.core.bugs import BugCommit, BugCommitted
from shoal.core.checkpoints import CheckpointCommit, CheckpointCommitted
from shoal.core.metrics import MediaCommit, MediaCommitted
from shoal.core.schema import MOST_INT
from shoal.core.snapshots import SnapshotCommit, SnapshotCommitted
from shoal.core.stacks import StacksReport
from shoal.server.context import Ctx
from shoal.server.lane import received
from shoal.server.policy import Agent, AnyAgent, DeliveringAgent
from shoal.server.routers import api_router
from shoal.server.services import agents, attaches, bugs, checkpoints, media, snapshots, stacks, streams

router = api_router("/agent", tags=["agent"])
Stream = Literal["log", "system", "metric"]


@router.post("/join")
def join(ctx: Ctx, who: DeliveringAgent, request: JoinRequest) -> JoinReply:
    """Enter the gang; `ready` once all its nodes have."""
    return agents.join(ctx, who, request)


@router.post("/beat")
def beat(ctx: Ctx, who: AnyAgent, request: BeatRequest) -> BeatReply:
    """Still here: state and progress; the reply carries commands."""
    return agents.beat(ctx, who, request)


@router.post("/segments/{stream}")
async def segment(
    ctx: Ctx,
    who: DeliveringAgent,
    stream: Stream,
    seq_first: Annotated[int, Query(ge=0, le=MOST_INT)],
    count: Annotated[int, Query(ge=1, le=MOST_INT)],
    request: Request,
) -> SegmentReply:
    """A run of records of one stream, stored exactly once."""
    body = await request.body()
    return await run_in_threadpool(streams.append, ctx, who, stream, seq_first, count, body)


@router.get("/manifests/{manifest}")
def manifest(ctx: Ctx, who: Agent, manifest: str) -> Response:
    """The manifest of something this attempt mounts."""
    return Response(agents.manifest(ctx, who, manifest), media_type="application/json")


@router.get("/chunks/{hash}")
def chunk(ctx: Ctx, who: Agent, hash: str) -> Response:
    """Plain bytes of a chunk of the attempt's own source and mounts."""
    return Response(agents.chunk(ctx, who, hash), media_type="application/octet-stream")


@router.post("/chunks")
async def put_chunks(ctx: Ctx, who: DeliveringAgent, request: Request) -> dict[str, int]:
    """Upload chunks of a checkpoint or of media."""
    body = await received(request)
    return {"stored": await run_in_threadpool(checkpoints.put_chunks, ctx, who, body)}


@router.post("/checkpoints")
def capture(ctx: Ctx, who: DeliveringAgent, request: CheckpointCommit) -> CheckpointCommitted:
    """Commit a complete checkpoint; `missing` lists chunks to upload first."""
    return checkpoints.capture(ctx, who, request)


@router.post("/media")
def commit_media(ctx: Ctx, who: DeliveringAgent, request: MediaCommit) -> MediaCommitted:
    """Commit a picture, figure or table the job has logged; `missing` lists chunks to upload first."""
    return media.commit(ctx, who, request)


@router.post("/bugs")
def commit_bug(ctx: Ctx, who: DeliveringAgent, request: BugCommit) -> BugCommitted:
    """Tell of a step that failed, and commit its capsule; `missing` lists chunks to upload first."""
    return bugs.commit(ctx, who, request)


@router.post("/snapshots")
def capture_snapshot(ctx: Ctx, who: DeliveringAgent, request: SnapshotCommit) -> SnapshotCommitted:
    """Commit what was on a lease's volume; `missing` lists chunks to upload first."""
    return snapshots.capture(ctx, who, request)


@router.post("/attach")
def attach(ctx: Ctx, who: Agent, request: AttachFetch) -> AttachOrder:
    """How to let those in who attach to this node, as its agent was told to."""
    return attaches.fetch(ctx, who, request)


@router.post("/stacks", status_code=204)
def report_stacks(ctx: Ctx, who: Agent, request: StacksReport) -> None:
    """Where each worker of the node was when the server asked for it."""
    stacks.report(ctx, who, request)
