"""Routes for agents. An agent's token is valid for these routes only, and for one node of one attempt.

Once the node has ended, its token is only accepted for delivering the rest of its reports.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from shoal.core.agents import BeatReply, BeatRequest, JoinReply, JoinRequest, ReadyReply, ReadyRequest, SegmentReply
from shoal.core.attach import AttachFetch, AttachInstructions
from shoal.core.bugs import BugCommit, BugCommitted
from shoal.core.checkpoints import CheckpointCommit, CheckpointCommitted
from shoal.core.metrics import MediaCommit, MediaCommitted
from shoal.core.schema import MOST_INT
from shoal.core.snapshots import SnapshotCommit, SnapshotCommitted
from shoal.core.stacks import StacksReport
from shoal.server.artifacts import checkpoints, media
from shoal.server.bulk_upload import received
from shoal.server.context import Ctx
from shoal.server.jobs import agents, bug_capsules, stacks, streams
from shoal.server.jobs import attach as attaches
from shoal.server.leases import snapshots
from shoal.server.policy import Agent, AnyAgent, DeliveringAgent
from shoal.server.routers import api_router

router = api_router("/agent", tags=["agent"])
Stream = Literal["log", "system", "metric"]


@router.post("/join")
def join(ctx: Ctx, who: DeliveringAgent, request: JoinRequest) -> JoinReply:
    """Register the node with its gang. Repeat until `ready` is true, which means that all nodes have joined."""
    return agents.join(ctx, who, request)


@router.post("/ready")
def ready(ctx: Ctx, who: DeliveringAgent, request: ReadyRequest) -> ReadyReply:
    """Report that the node is prepared. Repeat until `go` is true, which means that all nodes are; then start the workers."""
    return agents.ready(ctx, who, request)


@router.post("/beat")
def beat(ctx: Ctx, who: AnyAgent, request: BeatRequest) -> BeatReply:
    """Send a heartbeat with the node's state and progress. The reply contains commands for the agent."""
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
    """Append consecutive records to one stream. Each record is stored exactly once, however often it is sent."""
    body = await request.body()
    return await run_in_threadpool(streams.append, ctx, who, stream, seq_first, count, body)


@router.get("/manifests/{manifest}")
def manifest(ctx: Ctx, who: Agent, manifest: str) -> Response:
    """Return the manifest of a source, dataset or checkpoint that this attempt mounts."""
    return Response(agents.manifest(ctx, who, manifest), media_type="application/json")


@router.get("/chunks/{hash}")
def chunk(ctx: Ctx, who: Agent, hash: str) -> Response:
    """Return the uncompressed bytes of one chunk of the attempt's source or mounts."""
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
    """Report a failed step and commit its bug capsule; `missing` lists chunks to upload first."""
    return bug_capsules.commit(ctx, who, request)


@router.post("/snapshots")
def capture_snapshot(ctx: Ctx, who: DeliveringAgent, request: SnapshotCommit) -> SnapshotCommitted:
    """Commit a snapshot of a lease's volume; `missing` lists chunks to upload first."""
    return snapshots.capture(ctx, who, request)


@router.post("/attach")
def attach(ctx: Ctx, who: Agent, request: AttachFetch) -> AttachInstructions:
    """Return the keys and settings with which the agent opens this node for attached users."""
    return attaches.fetch(ctx, who, request)


@router.post("/stacks", status_code=204)
def report_stacks(ctx: Ctx, who: Agent, request: StacksReport) -> None:
    """Deliver the stack of each worker of the node, as requested by the server."""
    stacks.report(ctx, who, request)
