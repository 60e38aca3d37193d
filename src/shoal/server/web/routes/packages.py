"""The package index, `/simple/`: by it pip installs Shoal from the server itself. Open to everyone, as what it serves is."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from shoal.core.install import INSTALLER_PATH
from shoal.server.context import Ctx
from shoal.server.packages import index
from shoal.server.packages.wheels import normal
from shoal.server.policy import Anyone

router = APIRouter()


@router.get(INSTALLER_PATH, dependencies=[Anyone])
def installer() -> Response:
    """Return the program that installs Shoal from this server where pip does not know its CA. Check the CA before you run it."""
    return Response(index.installer(), media_type="text/x-python")


@router.get("/simple/", dependencies=[Anyone])
def projects(ctx: Ctx) -> Response:
    """List the projects."""
    return HTMLResponse(index.projects_page(ctx.layout))


@router.get("/simple/{project}", dependencies=[Anyone])
def without_slash(project: str) -> Response:
    """Redirect to the address that pip uses."""
    return RedirectResponse(f"/simple/{normal(project)}/", 301)


@router.get("/simple/{project}/", dependencies=[Anyone])
def project(ctx: Ctx, project: str) -> Response:
    """List the files of a project."""
    return HTMLResponse(index.project_page(ctx.layout, project))


@router.get("/simple/{project}/{name}", dependencies=[Anyone])
def file(ctx: Ctx, project: str, name: str) -> Response:
    """Return a wheel."""
    found = index.file(ctx.layout, project, name)
    if isinstance(found, Path):
        return FileResponse(found, media_type="application/octet-stream")
    return Response(found, media_type="application/octet-stream")
