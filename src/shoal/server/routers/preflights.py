"""Preflights: a few real steps of a job before it is submitted."""

from __future__ import annotations

from shoal.core.jobs import JobSpec
from shoal.core.preflight import PreflightAdvice, PreflightView
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.preflight import service as preflights
from shoal.server.routers import api_router

router = api_router("/workspaces/{workspace}/preflights", tags=["preflights"])


@router.post("", status_code=201)
def start(ctx: Ctx, access: Worker, spec: JobSpec) -> PreflightView:
    """Start a preflight of a job on one slot. It is validated like the job itself, and queued as a separate job."""
    return preflights.start(ctx, access, spec)


@router.post("/advice")
def advise(ctx: Ctx, access: Viewer, spec: JobSpec) -> PreflightAdvice:
    """Return whether a preflight is recommended before this job is submitted."""
    return preflights.advise(ctx, spec)


@router.get("/{preflight}")
def inspect(ctx: Ctx, access: Viewer, preflight: str) -> PreflightView:
    """Return the progress of a preflight, and its report once it has finished. A preflight that is not polled for two
    minutes is stopped."""
    return preflights.get(ctx, access, preflight)


@router.delete("/{preflight}", status_code=204)
def drop(ctx: Ctx, access: Worker, preflight: str) -> None:
    """Stop a preflight and delete its data. Otherwise it is deleted 15 minutes after its end."""
    preflights.drop(ctx, access, preflight)
