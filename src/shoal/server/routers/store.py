"""Chunks in and out of the store."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.concurrency import run_in_threadpool

from shoal.core.artifacts import MissingReply, MissingRequest
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.services import sources

router = APIRouter(prefix="/workspaces/{workspace}/store", tags=["store"])
Hash = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


@router.post("/missing")
def missing(ctx: Ctx, access: Worker, request: MissingRequest) -> MissingReply:
    """Which of these chunks have to be uploaded."""
    return sources.missing(ctx, access, request.hashes)


@router.post("/chunks")
async def put_chunks(ctx: Ctx, access: Worker, request: Request) -> dict[str, int]:
    """Upload a batch of chunks, framed as in `shoal.store.wire`."""
    body = await request.body()
    return {"stored": await run_in_threadpool(sources.put_chunks, ctx, access, body)}


@router.get("/chunks/{hash}")
def get_chunk(ctx: Ctx, access: Viewer, hash: Hash) -> Response:
    """Plain bytes of a chunk."""
    return Response(sources.get_chunk(ctx, access, hash), media_type="application/octet-stream")
