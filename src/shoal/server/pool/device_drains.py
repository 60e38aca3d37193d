"""Devices that take no new jobs: drained by an admin, or by the server after a hardware fault. The drain survives restarts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.agent.devices.device import Device
from shoal.core.audit import AuditAction
from shoal.core.errors import NotFound
from shoal.core.faults import Remedy, remedy
from shoal.core.schema import utcnow
from shoal.core.states import AttemptState
from shoal.engines.base import Machine
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.jobs.events import record_event
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.pool import DrainedDevice
from shoal.server.policy import AgentIdentity
from shoal.server.scheduler.avoid import failed_slot

logger = logging.getLogger(__name__)
_MOST_NAMED = 5


def restore(ctx: Context) -> None:
    """Drain the devices that were drained when the server last ran."""
    with ctx.db.read() as session:
        ctx.engine.set_drained_devices(
            {(d.machine, d.device): d.reason for d in session.scalars(select(DrainedDevice))}
        )


def change(ctx: Context, machine: str, names: Sequence[str], *, draining: bool, reason: str = "by an admin") -> None:
    """Drain devices of a machine, or use them again. `names` are UUIDs, beginnings of UUIDs, or numbers of slots."""
    found = next((m for m in ctx.engine.capacity() if m.name == machine), None)
    devices = [_find(found, name, machine) for name in names]

    def work(session: Session) -> None:
        for device in devices:
            row = session.get(DrainedDevice, (machine, device.identity))
            if draining and row is None:
                session.add(DrainedDevice(machine=machine, device=device.identity, since=utcnow(), reason=reason))
            elif not draining and row is not None:
                session.delete(row)
            if draining == (row is None):
                action = AuditAction.MACHINE_DRAIN if draining else AuditAction.MACHINE_RESUME
                record_action(session, action, machine, detail=f"device {device.identity}")

    ctx.db.write(work, essential=True)
    restore(ctx)
    ctx.live.scheduler.set()


def is_drained(ctx: Context, machine: str, device: Device) -> bool:
    with ctx.db.read() as session:
        return session.get(DrainedDevice, (machine, device.identity)) is not None


def drain_faulty(ctx: Context, since: datetime) -> datetime:
    """Drain devices on which a job met a hardware fault after `since`; return the time up to which nodes were read.

    The rank that failed tells the device; a node whose failed rank is unknown counts only if it has a single slot.
    """
    machines = {m.name: m for m in ctx.engine.capacity() if m.inventory}
    if not machines:
        return since
    failed = (
        select(
            Attempt.job_id,
            Node.machine,
            Node.slots,
            Node.reason,
            Attempt.number,
            Node.index,
            Node.failed_rank,
            Node.ended_at,
        )
        .join(Attempt, Attempt.id == Node.attempt_id)
        .where((Attempt.state != AttemptState.ENDED.value) | (Attempt.ended_at > since))
        .where(Node.blamed.is_(True), Node.reason.is_not(None), Node.ended_at > since)
    )
    with ctx.db.read() as session:
        rows = list(session.execute(failed))
    for job_id, machine, slots, said, attempt, index, rank, _ in rows:
        place, slot = machines.get(machine), failed_slot(slots, index, rank)
        if place is None or slot is None or slot >= len(place.inventory):
            continue
        device, reason = place.inventory[slot], said or ""
        if remedy(reason) is not Remedy.DRAIN or is_drained(ctx, machine, device):
            continue
        change(ctx, machine, [device.identity], draining=True, reason=reason[:300])
        text = f"{device.label} of '{machine}' is drained after a hardware fault; other devices are used"
        logger.warning("%s: %s", text, reason)
        ctx.db.write(partial(_record, job_id=job_id, text=text, attempt=attempt), essential=True)
    return max((row.ended_at for row in rows if row.ended_at), default=since)


def drain_stuck(ctx: Context, who: AgentIdentity, pids: Sequence[int]) -> None:
    """Drain the accelerators of a node whose processes cannot be killed: they may hold them for ever.

    A machine whose slots are CPUs is only used last for a while.
    """
    with ctx.db.read() as session:
        node = session.get_one(Node, (who.attempt_id, who.node))
        if node.ended_at is not None:
            return
    place = next((m for m in ctx.engine.capacity() if m.name == node.machine), None)
    devices = [place.inventory[slot] for slot in node.slots if slot < len(place.inventory)] if place else []
    some = ", ".join(map(str, pids[:_MOST_NAMED])) + (", …" if len(pids) > _MOST_NAMED else "")
    stuck = f"process{'es' if len(pids) > 1 else ''} {some} of this job cannot be killed"
    if devices:
        reason = f"{stuck.replace('this job', f'job {who.job_id}')}; reboot the machine if they stay"
        change(ctx, node.machine, [device.identity for device in devices], draining=True, reason=reason)
        names = ", ".join(device.label for device in devices)
        text = f"{names} of '{node.machine}' {'are' if len(devices) > 1 else 'is'} drained: {stuck}"
    else:
        ctx.queue.shun(node.machine)
        text = f"'{node.machine}' is used last for a while: {stuck}"
    logger.warning("%s (%s)", text, who.job_id)
    ctx.db.write(partial(_record, job_id=who.job_id, text=text, attempt=who.attempt), essential=True)


def _record(session: Session, job_id: str, text: str, attempt: int) -> None:
    job = session.get(Job, job_id)
    if job is not None:
        record_event(session, job, "device", text, attempt=attempt)


def _find(machine: Machine | None, name: str, asked: str) -> Device:
    devices = machine.inventory if machine is not None else ()
    if name.isdigit() and int(name) < len(devices):
        return devices[int(name)]
    for device in devices:
        if name in (device.identity, device.uuid) or (len(name) >= 8 and device.uuid.startswith(name)):
            return device
    raise NotFound(f"Machine '{asked}' has no device '{name}'.", hint=f"shoal machine devices {asked}")
