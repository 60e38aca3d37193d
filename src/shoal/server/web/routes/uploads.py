"""Uploads by transfer.js: files arrive in parts, then become a dataset or a source."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool

from shoal.core.datasets import DatasetCommitted
from shoal.server.context import Ctx
from shoal.server.policy import Worker
from shoal.server.web.files import uploads

router = APIRouter(prefix="/w/{workspace}/uploads")


@router.post("", status_code=201)
def begin(
    ctx: Ctx, access: Worker, size: Annotated[int, Query(ge=0)], purpose: uploads.Purpose = "dataset"
) -> uploads.Upload:
    """Begin an upload."""
    return uploads.begin(ctx, access, size, purpose)


@router.get("/{upload}")
def arrived(ctx: Ctx, access: Worker, upload: str) -> uploads.Arrived:
    """Return which parts of an interrupted upload have arrived."""
    return uploads.arrived(ctx, access, upload)


@router.put("/{upload}")
async def put_part(
    ctx: Ctx, access: Worker, upload: str, path: str, offset: Annotated[int, Query(ge=0)], request: Request
) -> dict[str, int]:
    """Write one part of one file."""
    data = await request.body()
    return {"have": await run_in_threadpool(uploads.put_part, ctx, access, upload, path, offset, data)}


@router.post("/{upload}/dataset", status_code=201)
def to_dataset(ctx: Ctx, access: Worker, upload: str, name: str, unpack: bool = True) -> DatasetCommitted:
    """Create the next version of a dataset from an upload."""
    return uploads.to_dataset(ctx, access, upload, name, unpacked=unpack)


@router.post("/{upload}/source", status_code=201)
def to_source(ctx: Ctx, access: Worker, upload: str, title: str) -> uploads.Sent:
    """Create a source for a job from an upload."""
    return uploads.to_source(ctx, access, upload, title)


@router.delete("/{upload}", status_code=204)
def give_up(ctx: Ctx, access: Worker, upload: str) -> None:
    """Delete an upload."""
    uploads.give_up(ctx, access, upload)
