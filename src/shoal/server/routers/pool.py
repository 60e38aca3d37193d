"""The machine pool: routes for admins, and routes that machines call to join the pool themselves."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Response

from shoal.core.jobs import CapacityView, DeviceRecordView
from shoal.core.pool import (
    JoinAddresses,
    JoinCommand,
    JoinCommandRequest,
    JoinDone,
    JoinFacts,
    JoinKnock,
    JoinPlan,
    MachineChange,
    PoolAdd,
    PoolCheck,
    PoolMachine,
)
from shoal.server.context import Ctx
from shoal.server.edge.certificates import PrivateCA
from shoal.server.policy import Admin, Anyone, Reader
from shoal.server.pool import device_history
from shoal.server.pool import join as pool_join
from shoal.server.pool import machines as pool_machines
from shoal.server.pool import service as pool
from shoal.server.pool.join import Joiner, JoinOnly
from shoal.server.request_origin import Address
from shoal.server.routers import api_router

router = api_router("/pool", tags=["pool"])
machines = api_router("/machines", tags=["machines"])
Joining = Annotated[Joiner, Depends(JoinOnly())]


@machines.get("")
def list_machines(ctx: Ctx, _: Reader) -> CapacityView:
    """List the machines with their total and free slots."""
    return pool_machines.capacity(ctx)


@machines.get("/device-history")
def list_device_records(
    ctx: Ctx,
    _: Reader,
    machine: str | None = None,
    limit: Annotated[int, Query(ge=1, le=device_history.MOST_SHOWN)] = device_history.MOST_SHOWN,
) -> list[DeviceRecordView]:
    """List what was known of the machines' accelerators and when, the newest first."""
    return device_history.records(ctx, machine, limit)


@router.get("")
def list_pool(ctx: Ctx, _: Admin) -> list[PoolMachine]:
    """List the machines that have joined the pool or are being added, in the order in which they were added."""
    return pool.list_machines(ctx)


@router.post("", status_code=202)
def add_machine(ctx: Ctx, _: Admin, request: PoolAdd) -> PoolMachine:
    """Start adding a machine by SSH. Poll the machine: `steps` show the progress, `state` the result."""
    return pool.add(ctx, request)


@router.post("/check")
def check_pool(
    ctx: Ctx, _: Admin, machine: Annotated[list[str] | None, Query()] = None, speed: bool = True
) -> PoolCheck:
    """Check machines again and measure the network speed between them."""
    return pool.check(ctx, machine or [], speed=speed)


@router.post("/join-command", status_code=201)
def join_command(ctx: Ctx, _: Admin, request: JoinCommandRequest) -> JoinCommand:
    """Create a command to paste on a machine that can reach this server but cannot be reached by SSH."""
    return pool_join.command(ctx, request)


@router.get("/machines/{machine}")
def get_machine(ctx: Ctx, _: Admin, machine: str) -> PoolMachine:
    """Return one machine of the pool, by name or id."""
    return pool.get(ctx, machine)


@router.patch("/machines/{machine}")
def change_machine(ctx: Ctx, _: Admin, machine: str, request: MachineChange) -> PoolMachine:
    """Drain a machine, or some of its devices, so that no new jobs start there, or return them to service."""
    return pool.drain(ctx, machine, draining=request.draining, devices=request.devices)


@router.delete("/machines/{machine}", status_code=204)
def remove_machine(ctx: Ctx, _: Admin, machine: str, force: bool = False) -> None:
    """Remove a machine from the pool and stop everything the pool runs on it."""
    pool.remove(ctx, machine, force=force)


@router.get("/join/script", dependencies=[Anyone])
def join_script(ctx: Ctx) -> Response:
    """Return the program that a joining machine runs. It contains no secret; the pasted command verifies its hash."""
    made = pool_join.script(PrivateCA(ctx.layout).pem, ctx.settings)
    return Response(made, media_type="text/x-python")


@router.post("/join/knock")
def join_knock(ctx: Ctx, who: Joining, address: Address, request: JoinKnock) -> JoinAddresses:
    """Return the addresses that the machine must be able to reach; or, with `port`, test whether the server can reach that
    port of the machine."""
    return pool_join.addresses_to_reach(ctx, who, address, request)


@router.post("/join/join")
def join(ctx: Ctx, who: Joining, request: JoinFacts) -> JoinPlan:
    """Register a joining machine with its hardware facts, if it meets the requirements. A join command works once."""
    return pool_join.add_machine(ctx, who, request)


@router.get("/join/wheel")
def join_wheel(ctx: Ctx, _: Joining) -> Response:
    """Return the Shoal wheel that a joining machine installs."""
    return Response(pool_join.wheel(), media_type="application/octet-stream")


@router.post("/join/done", status_code=204)
def join_done(ctx: Ctx, who: Joining, request: JoinDone) -> None:
    """Report that a joining machine has finished its setup, or why it failed."""
    pool_join.done(ctx, who, request)
