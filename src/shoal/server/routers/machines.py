"""The pool: machines and their slots."""

from __future__ import annotations

from shoal.core.jobs import CapacityView
from shoal.server.context import Ctx
from shoal.server.policy import Reader
from shoal.server.routers import api_router
from shoal.server.services import machines

router = api_router("/machines", tags=["machines"])


@router.get("")
def list_machines(ctx: Ctx, _: Reader) -> CapacityView:
    """Machines with their slots, all and free."""
    return machines.capacity(ctx)
