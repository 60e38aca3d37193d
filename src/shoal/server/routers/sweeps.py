"""Sweeps: one job many times, each with other values."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from shoal.core.schema import MOST_INT
from shoal.core.sweeps import SweepSpec, SweepSummary, SweepView, TrialOrder, TrialView
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router
from shoal.server.services import sweeps

router = api_router("/workspaces/{workspace}/sweeps", tags=["sweeps"])
Limit = Annotated[int, Query(ge=1, le=1000)]
Trials = Annotated[int, Query(ge=1, le=10_000)]


@router.post("", status_code=201)
def create(ctx: Ctx, access: Worker, spec: SweepSpec) -> SweepView:
    """Begin a sweep. Refused at once if its trials could never run."""
    return sweeps.create(ctx, access, spec)


@router.get("")
def list_sweeps(ctx: Ctx, access: Viewer, limit: Limit = 100) -> list[SweepSummary]:
    """Sweeps of the workspace, newest first."""
    return sweeps.summaries(ctx, access, limit=limit)


@router.get("/{sweep}")
def inspect(ctx: Ctx, access: Viewer, sweep: str) -> SweepView:
    """One sweep: how far it is, its best trial, what its parameters matter, what it has used."""
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
    """Its trials, by number or best result first; `after` is the number of the last one of the page before."""
    return sweeps.trials(ctx, access, sweep, order=order, limit=limit, after=after)


@router.post("/{sweep}/stop")
def stop(ctx: Ctx, access: Worker, sweep: str) -> SweepView:
    """Submit no more trials, and stop those that run as any job is stopped."""
    return sweeps.stop(ctx, access, sweep)


@router.post("/{sweep}/rerun")
def rerun(ctx: Ctx, access: Worker, sweep: str, failed: bool = False) -> SweepView:
    """Go on with a sweep that has ended: stopped trials continue and those never begun begin; with `failed`, failed ones run again too."""
    return sweeps.rerun(ctx, access, sweep, failed=failed)


@router.delete("/{sweep}", status_code=204)
def delete(ctx: Ctx, access: Worker, sweep: str, jobs: bool = False) -> None:
    """Remove a sweep that has ended. Its jobs stay, unless `jobs` asks for them to go too."""
    sweeps.delete(ctx, access, sweep, jobs=jobs)
