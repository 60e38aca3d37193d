"""Upload and download of chunks of the store, one at a time or framed in batches."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request, Response
from fastapi.concurrency import run_in_threadpool

from shoal.core.artifacts import MissingReply, MissingRequest
from shoal.core.datasets import FetchRequest
from shoal.server.artifacts import chunks
from shoal.server.bulk_upload import GroupsResponse, received
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router
from shoal.store.wire import CONTENT_TYPE

router = api_router("/workspaces/{workspace}/store", tags=["store"])
Hash = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


@router.post("/missing")
def missing(ctx: Ctx, access: Worker, request: MissingRequest) -> MissingReply:
    """Return which of these chunks have to be uploaded."""
    return MissingReply(missing=chunks.missing(ctx, access.workspace_id, request.hashes))


@router.post("/chunks")
async def put_chunks(ctx: Ctx, access: Worker, request: Request) -> dict[str, int]:
    """Upload a batch of chunks, framed as in `shoal.store.wire`."""
    body = await received(request)
    return {"stored": await run_in_threadpool(chunks.receive, ctx, access.workspace_id, body)}


@router.get("/chunks/{hash}")
def get_chunk(ctx: Ctx, access: Viewer, hash: Hash) -> Response:
    """Return the uncompressed bytes of one chunk."""
    return Response(chunks.get(ctx, access.workspace_id, hash), media_type="application/octet-stream")


@router.post("/fetch")
def fetch_chunks(ctx: Ctx, access: Viewer, request: FetchRequest) -> GroupsResponse:
    """Return many chunks at once, framed as in `shoal.store.wire`."""
    size, frames = chunks.frames(ctx, access.workspace_id, request.hashes)
    headers = {"Content-Length": str(size)} if size is not None else None
    return GroupsResponse(frames, media_type=CONTENT_TYPE, headers=headers)
