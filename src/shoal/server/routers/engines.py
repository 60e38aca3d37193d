"""Additional engines besides the server's own, such as clusters with a queue."""

from __future__ import annotations

from shoal.core.engines import EngineAdd, EngineView
from shoal.server.context import Ctx
from shoal.server.engines import service as engines
from shoal.server.policy import Admin
from shoal.server.routers import api_router

router = api_router("/admin/engines", tags=["admin"])


@router.get("")
def list_engines(ctx: Ctx, _: Admin) -> list[EngineView]:
    """List the added engines by name."""
    return engines.list_engines(ctx)


@router.post("", status_code=201)
def add_engine(ctx: Ctx, _: Admin, request: EngineAdd) -> EngineView:
    """Check an engine and add it. New jobs can run on it immediately."""
    return engines.add(ctx, request)


@router.post("/{engine}/check")
def check_engine(ctx: Ctx, _: Admin, engine: str) -> EngineView:
    """Check an engine for problems now."""
    return engines.check(ctx, engine)


@router.delete("/{engine}", status_code=204)
def remove_engine(ctx: Ctx, _: Admin, engine: str) -> None:
    """Remove an engine. Refused while jobs run on it."""
    engines.remove(ctx, engine)
