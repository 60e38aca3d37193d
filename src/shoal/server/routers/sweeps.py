"""Sweeps: one job run many times with different hyperparameters."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from shoal.core.schema import MOST_INT
from shoal.core.sweeps import SweepSpec, SweepSummary, SweepView, TrialOrder, TrialView
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router
from shoal.server.sweeps import service as sweeps

router = api_router("/workspaces/{workspace}/sweeps", tags=["sweeps"])
Limit = Annotated[int, Query(ge=1, le=1000)]
Trials = Annotated[int, Query(ge=1, le=10_000)]


@router.post("", status_code=201)
def create(ctx: Ctx, access: Worker, spec: SweepSpec) -> SweepView:
    """Start a sweep. Refused immediately if its trials could never run."""
    return sweeps.create(ctx, access, spec)


@router.get("")
def list_sweeps(ctx: Ctx, access: Viewer, limit: Limit = 100) -> list[SweepSummary]:
    """List the sweeps of the workspace, newest first."""
    return sweeps.summaries(ctx, access, limit=limit)


@router.get("/{sweep}")
def inspect(ctx: Ctx, access: Viewer, sweep: str) -> SweepView:
    """Return one sweep: its progress, its best trial, the importance of its parameters, and its usage."""
    return sweeps.get(ctx, access, sweep)


@router.get("/{sweep}/trials")
def trials(
    ctx: Ctx,
    access: Viewer,
    sweep: str,
    order: TrialOrder = "number",
    limit: Trials = 1000,
    after: Annotated[int | None, Query(ge=0, le=MOST_INT)] = None,
) -> list[TrialView]:
    """List the trials of a sweep, by number or best result first; `after` is the number of the last trial of the previous
    page."""
    return sweeps.trials(ctx, access, sweep, order=order, limit=limit, after=after)


@router.post("/{sweep}/stop")
def stop(ctx: Ctx, access: Worker, sweep: str) -> SweepView:
    """Stop a sweep: submit no more trials, and stop the running ones like any job."""
    return sweeps.stop(ctx, access, sweep)


@router.post("/{sweep}/rerun")
def rerun(ctx: Ctx, access: Worker, sweep: str, failed: bool = False) -> SweepView:
    """Continue a sweep that has ended: resume its stopped trials and start those that never started. With `failed`, also
    run failed trials again."""
    return sweeps.rerun(ctx, access, sweep, failed=failed)


@router.delete("/{sweep}", status_code=204)
def delete(ctx: Ctx, access: Worker, sweep: str, jobs: bool = False) -> None:
    """Delete a sweep that has ended. Its jobs stay unless `jobs` is set."""
    sweeps.delete(ctx, access, sweep, jobs=jobs)
