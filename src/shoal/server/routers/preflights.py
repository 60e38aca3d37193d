"""Preflights: a few true steps of a job before it is submitted."""

from __future__ import annotations

from shoal.core.jobs import JobSpec
from shoal.core.preflight import PreflightAdvice, PreflightView
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router
from shoal.server.services import preflights

router = api_router("/workspaces/{workspace}/preflights", tags=["preflights"])


@router.post("", status_code=201)
def start(ctx: Ctx, access: Worker, spec: JobSpec) -> PreflightView:
    """Try a job on one slot: it is refused as the job itself would be, and queued as a job of its own."""
    return preflights.start(ctx, access, spec)


@router.post("/advice")
def advise(ctx: Ctx, access: Viewer, spec: JobSpec) -> PreflightAdvice:
    """Whether a job should have a preflight before it is submitted."""
    return preflights.advise(ctx, spec)


@router.get("/{preflight}")
def inspect(ctx: Ctx, access: Viewer, preflight: str) -> PreflightView:
    """How it goes, and its report once it is over. One that nobody asks about for two minutes is ended."""
    return preflights.get(ctx, access, preflight)


@router.delete("/{preflight}", status_code=204)
def drop(ctx: Ctx, access: Worker, preflight: str) -> None:
    """Stop and remove it with all it left. One that nobody removes goes a quarter of an hour after its end."""
    preflights.drop(ctx, access, preflight)
