"""The pool for its admins, and the way in for machines that come by themselves."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Response

from shoal.core.pool import (
    JoinAsk,
    JoinCommand,
    JoinDone,
    JoinFacts,
    JoinKnock,
    JoinPlan,
    JoinWays,
    MachineChange,
    PoolAdd,
    PoolCheck,
    PoolMachine,
)
from shoal.server.callers import Address
from shoal.server.context import Ctx
from shoal.server.policy import Admin, Anyone
from shoal.server.routers import api_router
from shoal.server.services import pool, pool_join
from shoal.server.services.pool_join import Joiner, JoinOnly

router = api_router("/pool", tags=["pool"])
Joining = Annotated[Joiner, Depends(JoinOnly())]


@router.get("")
def list_pool(ctx: Ctx, _: Admin) -> list[PoolMachine]:
    """Machines that have joined or are about to, in the order they came."""
    return pool.list_machines(ctx)


@router.post("", status_code=202)
def add_machine(ctx: Ctx, _: Admin, request: PoolAdd) -> PoolMachine:
    """Begin to add a machine by SSH; `steps` tell how far it is, `state` when it is over."""
    return pool.add(ctx, request)


@router.post("/check")
def check_pool(
    ctx: Ctx, _: Admin, machine: Annotated[list[str] | None, Query()] = None, speed: bool = True
) -> PoolCheck:
    """Look at machines again and measure how fast they reach each other."""
    return pool.check(ctx, machine or [], speed=speed)


@router.post("/join-command", status_code=201)
def join_command(ctx: Ctx, _: Admin, request: JoinAsk) -> JoinCommand:
    """A line to paste on a machine that can reach this server but not be reached by SSH."""
    return pool_join.command(ctx, request)


@router.get("/machines/{machine}")
def get_machine(ctx: Ctx, _: Admin, machine: str) -> PoolMachine:
    """One machine, by name or id."""
    return pool.get(ctx, machine)


@router.patch("/machines/{machine}")
def change_machine(ctx: Ctx, _: Admin, machine: str, request: MachineChange) -> PoolMachine:
    """Drain a machine, or take it back."""
    return pool.drain(ctx, machine, draining=request.draining)


@router.delete("/machines/{machine}", status_code=204)
def remove_machine(ctx: Ctx, _: Admin, machine: str, force: bool = False) -> None:
    """End what runs there for the pool, and forget the machine."""
    pool.remove(ctx, machine, force=force)


@router.get("/join/script", dependencies=[Anyone])
def join_script(ctx: Ctx) -> Response:
    """The program of a machine that joins. Holds no secret; its hash is part of the line one pastes."""
    return Response(pool_join.script(), media_type="text/x-python")


@router.post("/join/knock")
def join_knock(ctx: Ctx, who: Joining, address: Address, request: JoinKnock) -> JoinWays:
    """Where the machine must get through to; and try a port of its own."""
    return pool_join.ways(ctx, who, address, request)


@router.post("/join/join")
def join(ctx: Ctx, who: Joining, request: JoinFacts) -> JoinPlan:
    """A machine has come: take it in, once, if it fits."""
    return pool_join.take_in(ctx, who, request)


@router.get("/join/wheel")
def join_wheel(ctx: Ctx, _: Joining) -> Response:
    """What the machine installs."""
    return Response(pool_join.wheel(), media_type="application/octet-stream")


@router.post("/join/done", status_code=204)
def join_done(ctx: Ctx, who: Joining, request: JoinDone) -> None:
    """The machine has done its part, or could not."""
    pool_join.done(ctx, who, request)
