"""The server's own machine as part of the pool: it can be drained and resumed, but not removed."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import NotFound
from shoal.core.pool import OWN_MACHINE, PoolMachine, Problem
from shoal.core.schema import utcnow
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.models.pool import DrainedMachine
from shoal.server.pool.machines import in_use


def restore_drained(ctx: Context) -> None:
    """Drain the machines that were drained when the server last ran."""
    with ctx.db.read() as session:
        names = set(session.scalars(select(DrainedMachine.name)))
    for machine in names | {OWN_MACHINE}:
        ctx.engine.drain(machine, draining=machine in names)


def drain(ctx: Context, *, draining: bool) -> PoolMachine:
    """Stop starting jobs on the server's own machine, or use it again; running jobs are not affected."""

    def work(session: Session) -> None:
        row = session.get(DrainedMachine, OWN_MACHINE)
        if draining and row is None:
            session.add(DrainedMachine(name=OWN_MACHINE, since=utcnow()))
            record_action(session, AuditAction.MACHINE_DRAIN, OWN_MACHINE)
        elif not draining and row is not None:
            session.delete(row)
            record_action(session, AuditAction.MACHINE_RESUME, OWN_MACHINE)

    ctx.db.write(work, essential=True)
    ctx.engine.drain(OWN_MACHINE, draining=draining)
    ctx.live.scheduler.set()
    return view(ctx)


def view(ctx: Context) -> PoolMachine:
    machine = next((m for m in ctx.engine.capacity() if m.name == OWN_MACHINE), None)
    if machine is None:
        raise NotFound("This server has no machine of its own.", hint="shoal machine list")
    with ctx.db.read() as session:
        used = in_use(session)[OWN_MACHINE]
    return PoolMachine.model_validate(
        {
            "id": OWN_MACHINE,
            "name": OWN_MACHINE,
            "via": "server",
            "user": None,
            "host": "localhost",
            "port": None,
            "address": machine.address,
            "state": machine.state,
            "kind": machine.kind,
            "slots": machine.slots,
            "slots_free": max(0, machine.slots - used) if machine.state == "up" and not machine.refuses else 0,
            "problems": [Problem(text=text, fix="") for text in machine.problems],
        }
    )
