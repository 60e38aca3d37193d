"""Figures, images and tables that a job has logged."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.server.context import Ctx
from shoal.server.policy import Viewer
from shoal.server.web.job import figures
from shoal.server.web.render import page

router = APIRouter(prefix="/w/{workspace}/jobs/{job}/figures")


@router.get("")
def gallery(ctx: Ctx, request: Request, access: Viewer, job: str) -> Response:
    """Show figures, images and tables, the newest of each name."""
    data = dict(figures.gallery(ctx, access, job)) | {"tab": "figures"}
    return page(request, ctx, access, "job_figures.html", data, part="_figures.html")


@router.get("/one")
def one(
    ctx: Ctx, request: Request, access: Viewer, job: str, name: str, type: str, at: int | None = None, whole: bool = False
) -> Response:  # fmt: skip
    """Show one figure; `at` is its index among those of the same name."""
    figure = figures.one(ctx, access, job, name, type, at)
    part = "_figure.html" if whole else "_figure_shown.html"
    return page(request, ctx, access, "figure.html", {"figure": figure, "job_ref": job}, part=part)
