"""Checkpoints: list, look, fetch, download, push, keep, export, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Response
from fastapi.responses import StreamingResponse

from shoal.core.checkpoints import (
    CheckpointCommitted,
    CheckpointExport,
    CheckpointKeep,
    CheckpointPush,
    CheckpointView,
)
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router
from shoal.server.services import checkpoints, downloads, exports

router = api_router("/workspaces/{workspace}/checkpoints", tags=["checkpoints"])


@router.get("")
def list_checkpoints(ctx: Ctx, access: Viewer, job: str | None = None) -> list[CheckpointView]:
    """Checkpoints of the workspace or of one job, oldest first."""
    return checkpoints.list_checkpoints(ctx, access, job)


@router.post("", status_code=201)
def push(ctx: Ctx, access: Worker, request: CheckpointPush) -> CheckpointCommitted:
    """Bring a checkpoint from elsewhere; `missing` lists chunks to upload first."""
    return checkpoints.push(ctx, access, request)


@router.get("/{checkpoint}/files/{path:path}")
def download_file(
    ctx: Ctx, access: Viewer, checkpoint: str, path: str, range: Annotated[str | None, Header()] = None
) -> StreamingResponse:
    """One file of a checkpoint (by id or the name it was pushed under). A Range header continues a download."""
    found = downloads.file(ctx, access, checkpoint, path, range)
    return StreamingResponse(found.body, found.status, found.headers, found.media_type)


@router.get("/{checkpoint:path}/manifest")
def manifest(ctx: Ctx, access: Viewer, checkpoint: str) -> Response:
    """The manifest: files and the chunks they are made of."""
    return Response(checkpoints.manifest(ctx, access, checkpoint), media_type="application/json")


@router.get("/{checkpoint:path}/archive")
def download_archive(ctx: Ctx, access: Viewer, checkpoint: str) -> StreamingResponse:
    """All files of a checkpoint as a zip."""
    found = downloads.archive(ctx, access, checkpoint)
    return StreamingResponse(found.body, found.status, found.headers, found.media_type)


@router.post("/{checkpoint:path}/keep")
def keep(ctx: Ctx, access: Worker, checkpoint: str, request: CheckpointKeep) -> CheckpointView:
    """Protect a checkpoint from retention, or stop doing so."""
    return checkpoints.keep(ctx, access, checkpoint, request.keep)


@router.post("/{checkpoint:path}/export")
def export(ctx: Ctx, access: Worker, checkpoint: str, request: CheckpointExport) -> dict[str, int | str]:
    """Write its files to an S3-compatible place (on a private server also to a folder). Again writes only what lacks."""
    return exports.export(ctx, access, checkpoint, request)


@router.get("/{checkpoint:path}")
def inspect(ctx: Ctx, access: Viewer, checkpoint: str) -> CheckpointView:
    """One checkpoint: its id, the name it was pushed under, or JOB/NAME."""
    return checkpoints.get(ctx, access, checkpoint)


@router.delete("/{checkpoint:path}", status_code=204)
def delete(ctx: Ctx, access: Worker, checkpoint: str) -> None:
    """Remove a checkpoint."""
    checkpoints.delete(ctx, access, checkpoint)
