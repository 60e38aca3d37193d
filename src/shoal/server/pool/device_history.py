"""Accelerators of all machines in the database: what is there now, and what changed when (found, broken, drained, gone)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from shoal.agent.devices.device import Device
from shoal.core.jobs import DeviceRecordView
from shoal.core.schema import utcnow
from shoal.engines.base import Machine
from shoal.server.context import Context
from shoal.server.models.pool import DeviceRecord

_KEPT = timedelta(days=365)
"""Age at which records of the past are removed."""
MOST_SHOWN = 1000
Key = tuple[str, str]
"""Machine, and identity of the device."""


class DeviceHistory:
    """Compares the machines with what the database knows. Used by the scheduler's thread only, which owns `_known`."""

    def __init__(self, ctx: Context):
        self._ctx = ctx
        self._known: dict[Key, dict[str, Any]] | None = None

    def update(self) -> None:
        """Write what has changed since the last call, in one transaction; nothing if nothing has."""
        seen = _facts(self._ctx.engine.capacity())
        if self._known is None:
            with self._ctx.db.read() as session:
                now = session.scalars(select(DeviceRecord).where(DeviceRecord.until.is_(None)))
                self._known = {(row.machine, row.device): row.facts for row in now}
        if seen != self._known:
            known = self._known
            self._ctx.db.write(lambda session: _apply(session, known, seen))
            self._known = seen


def records(ctx: Context, machine: str | None = None, limit: int = MOST_SHOWN) -> list[DeviceRecordView]:
    """Return what was known of the devices and when, the newest first."""
    found = select(DeviceRecord).order_by(DeviceRecord.since.desc(), DeviceRecord.id.desc()).limit(limit)
    if machine is not None:
        found = found.where(DeviceRecord.machine == machine)
    with ctx.db.read() as session:
        return [_view(row) for row in session.scalars(found)]


def _facts(machines: Sequence[Machine]) -> dict[Key, dict[str, Any]]:
    return {(m.name, device.identity): device.to_json() for m in machines for device in m.inventory}


def _apply(session: Session, known: Mapping[Key, Mapping[str, Any]], seen: Mapping[Key, dict[str, Any]]) -> None:
    now = utcnow()
    over = {key for key, facts in known.items() if seen.get(key) != facts}
    for row in session.scalars(select(DeviceRecord).where(DeviceRecord.until.is_(None))) if over else ():
        if (row.machine, row.device) in over:
            row.until = now
    for (machine, device), facts in seen.items():
        if known.get((machine, device)) != facts:
            session.add(DeviceRecord(machine=machine, device=device, since=now, until=None, facts=facts))
    session.execute(delete(DeviceRecord).where(DeviceRecord.until < now - _KEPT))


def _view(row: DeviceRecord) -> DeviceRecordView:
    device = Device.from_json(row.facts)
    return DeviceRecordView(
        machine=row.machine,
        uuid=row.device,
        label=device.label,
        model=device.model,
        memory=device.memory,
        driver=device.driver,
        problem=device.problem,
        since=row.since,
        until=row.until,
    )
