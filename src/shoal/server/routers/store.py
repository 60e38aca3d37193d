"""Chunks in and out of the store, one at a time or many framed together."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from shoal.core.artifacts import MissingReply, MissingRequest
from shoal.core.datasets import FetchRequest
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.services import chunks
from shoal.store.buffers import Buffers
from shoal.store.hashing import Data
from shoal.store.wire import CONTENT_TYPE

router = APIRouter(prefix="/workspaces/{workspace}/store", tags=["store"])
_BODIES = Buffers(18 << 20, keep=4)
"""Somewhat more than what our own client sends at once."""
Hash = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


@router.post("/missing")
def missing(ctx: Ctx, access: Worker, request: MissingRequest) -> MissingReply:
    """Which of these chunks have to be uploaded."""
    return MissingReply(missing=chunks.missing(ctx, access.workspace_id, request.hashes))


@router.post("/chunks")
async def put_chunks(ctx: Ctx, access: Worker, request: Request) -> dict[str, int]:
    """Upload a batch of chunks, framed as in `shoal.store.wire`."""
    body = await _received(request)
    return {"stored": await run_in_threadpool(chunks.put, ctx, access.workspace_id, body)}


@router.get("/chunks/{hash}")
def get_chunk(ctx: Ctx, access: Viewer, hash: Hash) -> Response:
    """Plain bytes of a chunk."""
    return Response(chunks.get(ctx, access.workspace_id, hash), media_type="application/octet-stream")


@router.post("/fetch")
def fetch_chunks(ctx: Ctx, access: Viewer, request: FetchRequest) -> StreamingResponse:
    """Many chunks at once, framed as in `shoal.store.wire`."""
    size, frames = chunks.frames(ctx, access.workspace_id, request.hashes)
    headers = {"Content-Length": str(size)} if size is not None else None
    return StreamingResponse(frames, media_type=CONTENT_TYPE, headers=headers)


async def _received(request: Request) -> Data:
    """The body, gathered in memory that is used again where its length is told."""
    told = request.headers.get("content-length", "")
    if not told.isdigit():
        return await request.body()
    room, have = _BODIES.lend(int(told)), 0
    async for piece in request.stream():
        if piece:
            room[have : have + len(piece)] = piece
            have += len(piece)
    return room[:have]
