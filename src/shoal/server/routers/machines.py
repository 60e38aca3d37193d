"""The pool: machines and their slots."""

from __future__ import annotations

from fastapi import APIRouter

from shoal.core.jobs import CapacityView
from shoal.server.context import Ctx
from shoal.server.policy import Reader
from shoal.server.services import machines

router = APIRouter(prefix="/machines", tags=["machines"])


@router.get("")
def list_machines(ctx: Ctx, _: Reader) -> CapacityView:
    """Machines with their slots, all and free."""
    return machines.capacity(ctx)
