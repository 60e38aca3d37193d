"""A job's code and environment."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from shoal.server.context import Ctx
from shoal.server.policy import Viewer
from shoal.server.services import downloads
from shoal.server.web import code, previews, served
from shoal.server.web.render import page

router = APIRouter(prefix="/w/{workspace}/jobs/{job}/code")


@router.get("")
def look(
    ctx: Ctx, request: Request, access: Viewer, job: str, folder: str = "", file: str | None = None
) -> Response:  # fmt: skip
    """Its files, one of them in full, and what else it takes to run it again."""
    data = dict(code.look(ctx, access, job, folder=folder, file=file)) | {"tab": "code"}
    return page(request, ctx, access, "job_code.html", data, part="_job_files.html")


@router.get("/picture")
def picture(ctx: Ctx, access: Viewer, job: str, file: str) -> StreamingResponse:
    """A raster picture among its files."""
    return served.picture(ctx, previews.of_job(ctx, access, job), file)


@router.get("/download")
def download(ctx: Ctx, access: Viewer, job: str, file: str) -> StreamingResponse:
    """One file of it."""
    return served.file(ctx, previews.of_job(ctx, access, job), file)


@router.get("/archive")
def archive(ctx: Ctx, access: Viewer, job: str) -> StreamingResponse:
    """All of it as a zip."""
    found = downloads.source_archive(ctx, access, job)
    return StreamingResponse(found.body, found.status, found.headers, found.media_type)
