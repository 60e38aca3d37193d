"""Failed steps of jobs (bugs), and the data needed to replay them."""

from __future__ import annotations

from fastapi import Response

from shoal.core.bugs import BugView
from shoal.server.context import Ctx
from shoal.server.jobs import bug_capsules
from shoal.server.jobs import service as jobs
from shoal.server.policy import Viewer
from shoal.server.routers import api_router

router = api_router("/workspaces/{workspace}/jobs/{job}", tags=["bugs"])


@router.get("/bugs")
def list_bugs(ctx: Ctx, access: Viewer, job: str) -> list[BugView]:
    """List the failed steps of a job, oldest first."""
    return bug_capsules.list_bugs(ctx, access, job)


@router.get("/bugs/{bug}/manifest")
def manifest(ctx: Ctx, access: Viewer, job: str, bug: str) -> Response:
    """Return the manifest of a failed step's bug capsule: its files and their chunks."""
    return Response(bug_capsules.manifest(ctx, access, job, bug), media_type="application/json")


@router.get("/source/manifest")
def source(ctx: Ctx, access: Viewer, job: str) -> Response:
    """Return the manifest of the job's code as it was submitted."""
    return Response(jobs.source_manifest(ctx, access, job), media_type="application/json")
