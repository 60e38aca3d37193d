"""Actions of admins on machines of the pool: add, show, check, drain, remove."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import InvalidSpec, NotAllowedNow, Refused, ShoalError
from shoal.core.pool import OWN_MACHINE, PoolAdd, PoolCheck, PoolMachine
from shoal.engines.kinds import pool_kind
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.models.pool import PoolRow
from shoal.server.pool import device_drains, own_machine, pool_rows
from shoal.server.pool.add import Adding, ssh_of
from shoal.server.pool.machines import in_use
from shoal.server.pool.recheck import recheck
from shoal.server.pool.speed import measure

_STOP_S = 60.0


def list_machines(ctx: Context) -> list[PoolMachine]:
    """Return the machines in the order in which they were added."""
    return pool_rows.views(ctx, lambda session: session.scalars(select(PoolRow).order_by(PoolRow.created_at)))


def get(ctx: Context, name: str) -> PoolMachine:
    if name == OWN_MACHINE:
        return own_machine.view(ctx)
    [view] = pool_rows.views(ctx, lambda session: [pool_rows.find(session, name)])
    return view


def add(ctx: Context, asked: PoolAdd) -> PoolMachine:
    """Start adding a machine in the background; its steps show the progress."""
    if asked.key is not None and not Path(asked.key).expanduser().is_file():
        raise InvalidSpec(f"There is no key {asked.key} on the server's machine.", hint="--key PATH")
    name = asked.name or asked.host.replace(":", "-")
    machine_id = pool_rows.make(ctx, name, asked, via="ssh")
    adding = Adding(ctx, machine_id, name, asked)
    ctx.pool.submit(adding.run)
    return get(ctx, machine_id)


def drain(ctx: Context, name: str, *, draining: bool, devices: Sequence[str] = ()) -> PoolMachine:
    """Stop starting jobs on a machine or some of its devices, or use them again; running jobs are not affected."""
    if devices:
        device_drains.change(ctx, get(ctx, name).name, devices, draining=draining)
        return get(ctx, name)
    if name == OWN_MACHINE:
        return own_machine.drain(ctx, draining=draining)

    def work(session: Session) -> str:
        row = pool_rows.find(session, name)
        if row.state not in pool_rows.MEMBERS:
            raise NotAllowedNow(f"'{row.name}' is not in the pool: it is {row.state}.", hint="shoal pool list")
        wanted = pool_rows.DRAINING if draining else pool_rows.UP
        if row.state != wanted:
            action = AuditAction.MACHINE_DRAIN if draining else AuditAction.MACHINE_RESUME
            record_action(session, action, row.name, row.id)
        row.state = wanted
        return row.id

    machine_id = ctx.db.write(work, essential=True)
    ctx.pool.refresh(ctx)
    return get(ctx, machine_id)


def remove(ctx: Context, name: str, *, force: bool) -> None:
    """Stop a machine's daemon and remove it. `force`: even if jobs run on it or it cannot be reached."""
    with ctx.db.read() as session:
        row = pool_rows.find(session, name)
        used = in_use(session)[row.name]
    if row.state == pool_rows.ADDING and row.via == "ssh":
        raise NotAllowedNow(f"'{row.name}' is being added right now.", hint="shoal pool list")
    if used and not force:
        raise NotAllowedNow(
            f"Jobs hold {used} slots of '{row.name}'.",
            hint=f"shoal pool drain {row.name}, wait for them, then remove it; or --force to end them.",
        )
    # From here on nothing new starts there, even if stopping the node fails.
    pool_rows.change(ctx, row.id, state=pool_rows.FAILED)
    ctx.pool.refresh(ctx)
    try:
        _end_node(ctx, row)
    except ShoalError as error:
        if not force:
            pool_rows.change(ctx, row.id, state=row.state)
            ctx.pool.refresh(ctx)
            hint = f"shoal pool remove {row.name} --force removes it anyway."
            raise Refused(error.message, hint=hint) from None

    def work(session: Session) -> None:
        session.delete(session.get_one(PoolRow, row.id))
        record_action(session, AuditAction.MACHINE_REMOVE, row.name, row.id, detail="by force" if force else "")

    ctx.db.write(work, essential=True)
    ctx.pool.disconnect(ctx)


def check(ctx: Context, names: list[str], *, speed: bool) -> PoolCheck:
    """Check the named machines, or all; with `speed`, also measure the network between them."""
    with ctx.db.read() as session:
        chosen = [pool_rows.find(session, name) for name in names]
        rows = chosen or list(session.scalars(select(PoolRow).where(PoolRow.state.in_(pool_rows.MEMBERS))))
    for row in rows:
        recheck(ctx, row)
    ctx.pool.refresh(ctx)
    ids = [row.id for row in rows]
    machines = pool_rows.views(ctx, lambda session: _in_order(session, ids))
    return measure(ctx, rows, machines) if speed else PoolCheck(machines=machines)


def _in_order(session: Session, ids: list[str]) -> Iterable[PoolRow]:
    return [row for machine_id in ids if (row := session.get(PoolRow, machine_id)) is not None]


def _end_node(ctx: Context, row: PoolRow) -> None:
    if row.home is None:
        return
    if row.via != "ssh":
        raise Refused(
            f"'{row.name}' joined by itself, so this server cannot stop it: "
            f"on that machine, end the process in ~/.shoal/{pool_kind().folder}/node.json."
        )
    asked = PoolAdd.model_validate(row.asked)
    ssh_of(ctx, asked).do(
        {"do": "stop", "home": row.home, "daemon": pool_kind().daemon()}, python=row.python, timeout_s=_STOP_S
    )
