"""A later check of a machine that was added by SSH: its problems, and its accelerators, which may have changed since."""

from __future__ import annotations

from typing import Any

from shoal.agent.devices.device import Device, Inventory
from shoal.core.errors import ShoalError
from shoal.core.pool import PoolAdd, Problem
from shoal.engines.device_slots import merged
from shoal.server.context import Context
from shoal.server.models.pool import PoolRow
from shoal.server.pool import pool_rows
from shoal.server.pool.add import START_S, ssh_of
from shoal.server.pool.machines import in_use
from shoal.server.pool.problems import chosen, inventory_problems
from shoal.server.pool.ssh import Ssh
from shoal.server.pool.ssh_check import examine, read_devices, try_devices


def recheck(ctx: Context, row: PoolRow) -> None:
    """Check a machine again and store what was found. Machines that joined by themselves cannot be checked."""
    if row.via != "ssh" or row.url is None:
        return
    asked = PoolAdd.model_validate(row.asked)
    ssh, changed = ssh_of(ctx, asked), dict[str, Any]()
    try:
        facts, problems = examine(ctx, ssh, asked, row.url)
        if row.python:
            found = read_devices(ssh, row.python)
            problems += inventory_problems(found, asked.gpus)
            changed, words = _new_slots(ctx, row, asked, found, ssh)
            problems += words
            if row.kind != "cpu" and not _is_used(ctx, row.name):  # jobs may need all memory of their GPUs
                problems += try_devices(ssh, row.python, row.name)
    except ShoalError as error:
        facts, problems = row.facts, [Problem(text=error.message.rstrip("."), fix=error.hint or "", is_fatal=True)]
    pool_rows.change(ctx, row.id, facts=facts, problems=[problem.model_dump() for problem in problems], **changed)


def _new_slots(
    ctx: Context, row: PoolRow, asked: PoolAdd, found: Inventory, ssh: Ssh
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the changed values of a machine's row, and problems.

    Slots keep their numbers while jobs hold some. Without jobs, new devices join and those that are gone leave: GPUs that were
    added or cut into other MIG slices.
    """
    known, now = list(pool_rows.devices_of(row)), chosen(found, asked.gpus)
    if row.kind == "cpu" and now:
        text = f"it has {len(now)} {found.kind} devices now, and joined as a machine without"
        return {}, [Problem(text=text, fix=f"Add it again: shoal pool add {ssh.destination}")]
    if row.kind == "cpu" or not now or {d.identity for d in now} == {d.identity for d in known}:
        return {}, []
    if _is_used(ctx, row.name):
        new = len(merged(known, found, row.kind)) - len(known)
        text = f"{new} of its devices are not in the pool yet" if new else "some of its devices are gone"
        return {}, [Problem(text=text, fix=f"Once no job runs there: shoal pool check {row.name}")]
    return _start_with(ctx, row, asked, now, ssh), []


def _start_with(ctx: Context, row: PoolRow, asked: PoolAdd, devices: list[Device], ssh: Ssh) -> dict[str, Any]:
    """Start the machine's daemon again with these devices; no job can start there meanwhile."""
    assert row.python and row.home and row.address  # noqa: S101
    task = ctx.pool.daemon_instructions(
        row.name, slots=len(devices), python=row.python, home=row.home, address=row.address, gpus=asked.gpus
    )
    pool_rows.change(ctx, row.id, state=pool_rows.DRAINING)
    ctx.pool.refresh(ctx)
    try:
        if _is_used(ctx, row.name):  # a job has just started
            return {}
        ssh.do({"do": "start", **task}, python=row.python, timeout_s=START_S)
    finally:
        pool_rows.change(ctx, row.id, state=row.state)
    return {"slots": len(devices), "devices": [device.to_json() for device in devices]}


def _is_used(ctx: Context, machine: str) -> bool:
    with ctx.db.read() as session:
        return bool(in_use(session)[machine])
