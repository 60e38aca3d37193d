"""Checkpoints: list, inspect, fetch, download, push, keep, export, delete."""

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
from shoal.server.artifacts import checkpoints, downloads, exports
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router

router = api_router("/workspaces/{workspace}/checkpoints", tags=["checkpoints"])


@router.get("")
def list_checkpoints(ctx: Ctx, access: Viewer, job: str | None = None) -> list[CheckpointView]:
    """List the checkpoints of the workspace or of one job, oldest first."""
    return checkpoints.list_checkpoints(ctx, access, job)


@router.post("", status_code=201)
def push(ctx: Ctx, access: Worker, request: CheckpointPush) -> CheckpointCommitted:
    """Create a checkpoint from uploaded files; `missing` lists chunks to upload first."""
    return checkpoints.push(ctx, access, request)


@router.get("/{checkpoint}/files/{path:path}")
def download_file(
    ctx: Ctx, access: Viewer, checkpoint: str, path: str, range: Annotated[str | None, Header()] = None
) -> StreamingResponse:
    """Download one file of a checkpoint. `checkpoint` is its id or the name it was pushed under. A Range header continues
    an interrupted download."""
    found = downloads.file(ctx, access, checkpoint, path, range)
    return StreamingResponse(found.body, found.status, found.headers, found.media_type)


@router.get("/{checkpoint:path}/manifest")
def manifest(ctx: Ctx, access: Viewer, checkpoint: str) -> Response:
    """Return the manifest of a checkpoint: its files and their chunks."""
    return Response(checkpoints.manifest(ctx, access, checkpoint), media_type="application/json")


@router.get("/{checkpoint:path}/archive")
def download_archive(ctx: Ctx, access: Viewer, checkpoint: str) -> StreamingResponse:
    """Download all files of a checkpoint as a zip archive."""
    found = downloads.archive(ctx, access, checkpoint)
    return StreamingResponse(found.body, found.status, found.headers, found.media_type)


@router.post("/{checkpoint:path}/keep")
def keep(ctx: Ctx, access: Worker, checkpoint: str, request: CheckpointKeep) -> CheckpointView:
    """Protect a checkpoint from automatic deletion, or remove the protection."""
    return checkpoints.keep(ctx, access, checkpoint, request.keep)


@router.post("/{checkpoint:path}/export")
def export(ctx: Ctx, access: Worker, checkpoint: str, request: CheckpointExport) -> dict[str, int | str]:
    """Copy the files of a checkpoint to an S3-compatible store (on a private server also to a folder). A repeated export
    writes only missing files."""
    return exports.export(ctx, access, checkpoint, request)


@router.get("/{checkpoint:path}")
def inspect(ctx: Ctx, access: Viewer, checkpoint: str) -> CheckpointView:
    """Return one checkpoint, by its id, the name it was pushed under, or JOB/NAME."""
    return checkpoints.get(ctx, access, checkpoint)


@router.delete("/{checkpoint:path}", status_code=204)
def delete(ctx: Ctx, access: Worker, checkpoint: str) -> None:
    """Delete a checkpoint."""
    checkpoints.delete(ctx, access, checkpoint)
