"""Two jobs against each other."""

from __future__ import annotations

from shoal.core.diffs import JobDiff
from shoal.server.context import Ctx
from shoal.server.policy import Viewer
from shoal.server.routers import api_router
from shoal.server.web import diff

router = api_router("/workspaces/{workspace}/jobs/{job}", tags=["jobs"])


@router.get("/diff/{other}")
def job_diff(ctx: Ctx, access: Viewer, job: str, other: str) -> JobDiff:
    """What differs between a job and another: code, settings, data, environment, hardware, seed, numbers; and the likely cause."""
    return diff.diff(ctx, access, job, other)
