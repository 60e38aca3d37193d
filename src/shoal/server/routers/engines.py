"""Engines besides the server's own: Slurm clusters."""

from __future__ import annotations

from shoal.core.engines import EngineAdd, EngineView
from shoal.server.context import Ctx
from shoal.server.policy import Admin
from shoal.server.routers import api_router
from shoal.server.services import engines

router = api_router("/admin/engines", tags=["admin"])


@router.get("")
def list_engines(ctx: Ctx, _: Admin) -> list[EngineView]:
    """Engines that were added, by name."""
    return engines.list_engines(ctx)


@router.post("", status_code=201)
def add_engine(ctx: Ctx, _: Admin, request: EngineAdd) -> EngineView:
    """Try an engine out, and use it from now on."""
    return engines.add(ctx, request)


@router.post("/{engine}/check")
def check_engine(ctx: Ctx, _: Admin, engine: str) -> EngineView:
    """Look for problems of an engine now."""
    return engines.check(ctx, engine)


@router.delete("/{engine}", status_code=204)
def remove_engine(ctx: Ctx, _: Admin, engine: str) -> None:
    """Use an engine no more; refused while jobs are on it."""
    engines.remove(ctx, engine)
