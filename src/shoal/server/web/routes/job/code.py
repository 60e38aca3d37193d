"""Code and environment of a job."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from shoal.server.artifacts import downloads
from shoal.server.context import Ctx
from shoal.server.policy import Viewer
from shoal.server.web.files import previews, served
from shoal.server.web.job import code
from shoal.server.web.render import page

router = APIRouter(prefix="/w/{workspace}/jobs/{job}/code")


@router.get("")
def show(
    ctx: Ctx, request: Request, access: Viewer, job: str, folder: str = "", file: str | None = None
) -> Response:  # fmt: skip
    """Show the files of the code, one of them in full, and everything needed to run the job again."""
    data = dict(code.show(ctx, access, job, folder=folder, file=file)) | {"tab": "code"}
    return page(request, ctx, access, "job_code.html", data, part="_job_files.html")


@router.get("/picture")
def picture(ctx: Ctx, access: Viewer, job: str, file: str) -> StreamingResponse:
    """Return a raster image among the files."""
    return served.picture(ctx, previews.of_job(ctx, access, job), file)


@router.get("/download")
def download(ctx: Ctx, access: Viewer, job: str, file: str) -> StreamingResponse:
    """Download one file of the code."""
    return served.file(ctx, previews.of_job(ctx, access, job), file)


@router.get("/archive")
def archive(ctx: Ctx, access: Viewer, job: str) -> StreamingResponse:
    """Download the whole code as a zip archive."""
    found = downloads.source_archive(ctx, access, job)
    return StreamingResponse(found.body, found.status, found.headers, found.media_type)
