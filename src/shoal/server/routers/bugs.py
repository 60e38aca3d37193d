"""Steps of jobs that failed, and what it takes to replay them."""

from __future__ import annotations

from fastapi import Response

from shoal.core.bugs import BugView
from shoal.server.context import Ctx
from shoal.server.policy import Viewer
from shoal.server.routers import api_router
from shoal.server.services import bugs, jobs

router = api_router("/workspaces/{workspace}/jobs/{job}", tags=["bugs"])


@router.get("/bugs")
def list_bugs(ctx: Ctx, access: Viewer, job: str) -> list[BugView]:
    """Steps that failed, oldest first."""
    return bugs.list_bugs(ctx, access, job)


@router.get("/bugs/{bug}/manifest")
def manifest(ctx: Ctx, access: Viewer, job: str, bug: str) -> Response:
    """The manifest of a failed step's capsule: files and the chunks they are made of."""
    return Response(bugs.manifest(ctx, access, job, bug), media_type="application/json")


@router.get("/source/manifest")
def source(ctx: Ctx, access: Viewer, job: str) -> Response:
    """The manifest of the job's code as it was submitted."""
    return Response(jobs.source_manifest(ctx, access, job), media_type="application/json")
