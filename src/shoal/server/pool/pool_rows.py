"""Machines of the pool in the database: find, create, change, and show them with their state in the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.agent.devices.device import Device
from shoal.core.audit import AuditAction
from shoal.core.errors import NameTaken, NotAllowedNow, NotFound, Refused
from shoal.core.ids import new_id
from shoal.core.names import did_you_mean
from shoal.core.pool import OWN_MACHINE, JoinCommandRequest, PoolAdd, PoolMachine, Problem, Step
from shoal.core.schema import utcnow
from shoal.engines.base import Machine
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.models.pool import PoolRow
from shoal.server.pool.machines import in_use
from shoal.server.pool.problems import probed_devices

ADDING, FAILED, UP, DRAINING = "adding", "failed", "up", "draining"
MEMBERS = (UP, DRAINING)


def find(session: Session, name_or_id: str) -> PoolRow:
    if name_or_id == OWN_MACHINE:
        raise Refused(
            f"'{OWN_MACHINE}' is the server's own machine: it can be drained, but neither checked nor removed.",
            hint=f"shoal pool drain {OWN_MACHINE}, or shoal up --slots 0",
        )
    for row in session.scalars(select(PoolRow)):
        if name_or_id in (row.name, row.id):
            return row
    names = list(session.scalars(select(PoolRow.name)))
    near = did_you_mean(name_or_id, names)
    raise NotFound(f"There is no machine '{name_or_id}' in the pool.{near}", hint="shoal pool list")


def make(ctx: Context, name: str, asked: PoolAdd | JoinCommandRequest, via: str, again: str | None = None) -> str:
    """Create the row of a machine that is being added and return its id.

    The row of a failed machine with this name is reused, as is that of the same machine (`again`: its id).
    """

    def work(session: Session) -> str:
        known = session.scalar(select(PoolRow).where(PoolRow.name == name))
        if known is not None and known.state == ADDING and known.id != again:
            raise NotAllowedNow(f"'{name}' is being added right now.", hint="shoal pool list")
        if known is not None and known.state not in (ADDING, FAILED) and not _is_same(known, asked):
            raise NameTaken(f"There is another machine '{name}' in the pool.", hint="--name ANOTHER")
        if known is None:
            known = PoolRow(id=new_id("mach"), name=name, created_at=utcnow())
            session.add(known)
        known.via, known.asked, known.state = via, asked.model_dump(mode="json"), ADDING
        known.kind, known.slots, known.gpus, known.devices = "cpu", 0, None, None
        known.facts, known.steps, known.problems = {}, [], []
        if known.id != again:
            record_action(session, AuditAction.MACHINE_ADD, name, known.id, detail=f"by {via}")
        return known.id

    return ctx.db.write(work)


def change(ctx: Context, machine_id: str, **values: Any) -> None:
    def work(session: Session) -> None:
        row = session.get(PoolRow, machine_id)
        for name, value in values.items() if row is not None else ():
            setattr(row, name, value)

    ctx.db.write(work)


def members(ctx: Context) -> list[Machine]:
    """Return the machines that have joined, as engines need them."""
    with ctx.db.read() as session:
        rows = session.scalars(select(PoolRow).where(PoolRow.state.in_(MEMBERS)).order_by(PoolRow.created_at))
        return [
            Machine(
                name=row.name,
                kind=row.kind,
                slots=row.slots,
                state=row.state,
                address=row.address,
                home=row.home,
                python=row.python,
                url=row.url,
                cores=row.facts.get("cores"),
                devices=tuple(_numbers(row)),
                inventory=devices_of(row),
                labels=row.asked.get("labels") or {},
                problems=[p["text"] for p in row.problems],
            )
            for row in rows
        ]


def devices_of(row: PoolRow) -> tuple[Device, ...]:
    """Return the accelerator of each slot of a machine; empty if its slots are CPUs, or an earlier version did not learn them."""
    if row.devices is not None:
        return tuple(Device.from_json(device) for device in row.devices)
    return probed_devices(row.kind, _numbers(row), row.facts)


def _numbers(row: PoolRow) -> list[int]:
    """Return the number of each slot's accelerator where only that is known: rows of earlier versions."""
    return [gpu for gpu in row.gpus or () if isinstance(gpu, int)] if row.devices is None else []


def views(ctx: Context, choose: Callable[[Session], Iterable[PoolRow]]) -> list[PoolMachine]:
    seen = {machine.name: machine.state for machine in ctx.engine.capacity()}
    with ctx.db.read() as session:
        used = in_use(session)
        return [_view(ctx, row, seen, used) for row in choose(session)]


def _view(ctx: Context, row: PoolRow, seen: dict[str, str], used: Counter[str]) -> PoolMachine:
    under_way = ctx.pool.steps(row.id)
    state = ADDING if under_way is not None else row.state
    if state in MEMBERS and seen.get(row.name, "lost") == "lost":
        state = "lost"
    asked = row.asked
    return PoolMachine.model_validate(
        {
            "id": row.id,
            "name": row.name,
            "via": row.via,
            "user": asked.get("user"),
            "host": asked.get("host") or row.address or "",
            "port": asked.get("port"),
            "address": row.address,
            "state": state,
            "kind": row.kind,
            "slots": row.slots,
            "slots_free": max(0, row.slots - used[row.name]) if state == UP else 0,
            "gpus": row.gpus,
            "python": row.python,
            "facts": row.facts,
            "steps": under_way if under_way is not None else [Step(**step) for step in row.steps],
            "problems": [Problem(**problem) for problem in row.problems],
            "created_at": row.created_at,
        }
    )


def _is_same(row: PoolRow, asked: PoolAdd | JoinCommandRequest) -> bool:
    return isinstance(asked, PoolAdd) and row.asked.get("host") == asked.host
