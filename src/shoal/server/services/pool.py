"""The pool's machines, as its admins ask for them: add, show, check, drain, remove."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.errors import InvalidSpec, NotAllowedNow, Refused, ShoalError
from shoal.core.pool import OWN_MACHINE, PoolAdd, PoolCheck, PoolMachine, Problem
from shoal.server.context import Context
from shoal.server.models.pool import PoolRow
from shoal.server.services import pool_own, pool_rows
from shoal.server.services.machines import in_use
from shoal.server.services.pool_add import Adding, ssh_of
from shoal.server.services.pool_look import look
from shoal.server.services.pool_speed import measure

_STOP_S = 60.0


def list_machines(ctx: Context) -> list[PoolMachine]:
    """In the order they came."""
    return pool_rows.views(ctx, lambda session: session.scalars(select(PoolRow).order_by(PoolRow.created_at)))


def get(ctx: Context, name: str) -> PoolMachine:
    if name == OWN_MACHINE:
        return pool_own.view(ctx)
    [view] = pool_rows.views(ctx, lambda session: [pool_rows.find(session, name)])
    return view


def add(ctx: Context, asked: PoolAdd) -> PoolMachine:
    """Begin to add it; what becomes of it is in its steps."""
    if asked.key is not None and not Path(asked.key).expanduser().is_file():
        raise InvalidSpec(f"There is no key {asked.key} on the server's machine.", hint="--key PATH")
    name = asked.name or asked.host.replace(":", "-")
    machine_id = pool_rows.make(ctx, name, asked, via="ssh")
    adding = Adding(ctx, machine_id, name, asked)
    ctx.pool.submit(adding.run)
    return get(ctx, machine_id)


def drain(ctx: Context, name: str, *, draining: bool) -> PoolMachine:
    """What runs there goes on; nothing new starts, until it is taken back."""
    if name == OWN_MACHINE:
        return pool_own.drain(ctx, draining=draining)

    def work(session: Session) -> str:
        row = pool_rows.find(session, name)
        if row.state not in pool_rows.MEMBERS:
            raise NotAllowedNow(f"'{row.name}' is not in the pool: it is {row.state}.", hint="shoal pool list")
        row.state = pool_rows.DRAINING if draining else pool_rows.UP
        return row.id

    machine_id = ctx.db.write(work, essential=True)
    ctx.pool.refresh(ctx)
    return get(ctx, machine_id)


def remove(ctx: Context, name: str, *, force: bool) -> None:
    """End what we run there and forget it. `force`: also with jobs on it, or when it cannot be reached."""
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
    # From here on nothing new starts there, whatever becomes of the rest.
    pool_rows.change(ctx, row.id, state=pool_rows.FAILED)
    ctx.pool.refresh(ctx)
    try:
        _end_node(ctx, row)
    except ShoalError as error:
        if not force:
            pool_rows.change(ctx, row.id, state=row.state)
            ctx.pool.refresh(ctx)
            hint = f"shoal pool remove {row.name} --force forgets it all the same."
            raise Refused(error.message, hint=hint) from None
    ctx.db.write(lambda session: session.delete(session.get_one(PoolRow, row.id)), essential=True)
    ctx.pool.disconnect(ctx)


def check(ctx: Context, names: list[str], *, speed: bool) -> PoolCheck:
    """Look at machines again, all unless named, and measure how they reach each other."""
    with ctx.db.read() as session:
        chosen = [pool_rows.find(session, name) for name in names]
        rows = chosen or list(session.scalars(select(PoolRow).where(PoolRow.state.in_(pool_rows.MEMBERS))))
    for row in rows:
        _look_again(ctx, row)
    ctx.pool.refresh(ctx)
    ids = [row.id for row in rows]
    machines = pool_rows.views(ctx, lambda session: _in_order(session, ids))
    return measure(ctx, rows, machines) if speed else PoolCheck(machines=machines)


def _in_order(session: Session, ids: list[str]) -> Iterable[PoolRow]:
    return [row for machine_id in ids if (row := session.get(PoolRow, machine_id)) is not None]


def _look_again(ctx: Context, row: PoolRow) -> None:
    if row.via != "ssh" or row.url is None:
        return
    asked = PoolAdd.model_validate(row.asked)
    try:
        facts, problems = look(ctx, ssh_of(ctx, asked), asked, row.url)
    except ShoalError as error:
        facts, problems = row.facts, [Problem(text=error.message.rstrip("."), fix=error.hint or "", is_fatal=True)]
    pool_rows.change(ctx, row.id, facts=facts, problems=[problem.model_dump() for problem in problems])


def _end_node(ctx: Context, row: PoolRow) -> None:
    if row.home is None:
        return
    if row.via != "ssh":
        raise Refused(
            f"'{row.name}' came by itself and cannot be reached: end the process in ~/.shoal/ray/node.json there."
        )
    asked = PoolAdd.model_validate(row.asked)
    ssh_of(ctx, asked).do({"do": "stop", "home": row.home}, python=row.python, timeout_s=_STOP_S)
