"""Capacity of the pool, and how much of it is in use."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.agent.devices.device import Device
from shoal.core.agents import GpuGauge
from shoal.core.jobs import CapacityView, DeviceView, MachineView
from shoal.core.states import AttemptState, NodeState
from shoal.engines.base import Machine
from shoal.server.context import Context
from shoal.server.models.jobs import Attempt, Node


def held(session: Session) -> dict[str, list[int]]:
    """Return machine name → slots that running nodes hold."""
    used: dict[str, list[int]] = {}
    rows = session.execute(
        select(Node.machine, Node.slots, Node.state)
        .join(Attempt, Attempt.id == Node.attempt_id)
        .where(Attempt.state != AttemptState.ENDED.value)
    )
    for machine, slots, state in rows:
        if not NodeState(state).is_terminal:
            used.setdefault(machine, []).extend(slots)
    return used


def in_use(session: Session) -> Counter[str]:
    """Return machine name → number of slots that running nodes hold."""
    return Counter({machine: len(slots) for machine, slots in held(session).items()})


def capacity(ctx: Context) -> CapacityView:
    with ctx.db.read() as session:
        used = held(session)
    return CapacityView(
        machines=[
            _view(machine, set(used.get(machine.name, ())), ctx.gauges.of(machine.name))
            for machine in ctx.engine.capacity()
        ]
    )


def _view(machine: Machine, used: set[int], reported: dict[str, GpuGauge]) -> MachineView:
    gauges = {uuid: GpuGauge.model_validate(found) for uuid, found in machine.gauges.items()} | reported
    broken = {slot for slot, device in enumerate(machine.inventory) if device.problem}
    return MachineView(
        name=machine.name,
        kind=machine.kind,
        slots_total=machine.slots,
        slots_free=max(0, machine.slots - len(used | broken)),
        state=machine.state,
        problems=machine.problems,
        devices=[
            _device(slot, device, slot in used, gauges.get(device.identity))
            for slot, device in enumerate(machine.inventory)
        ],
    )


def _device(slot: int, device: Device, is_used: bool, gauge: GpuGauge | None) -> DeviceView:
    measured = gauge or GpuGauge(i=0, uuid="")
    return DeviceView(
        slot=slot,
        uuid=device.uuid or device.pci,
        label=device.label,
        model=device.model,
        memory=device.memory,
        pci=device.pci,
        driver=device.driver,
        runtime=device.runtime,
        is_free=not is_used and not device.problem,
        problem=device.problem,
        numa=device.numa,
        island=device.island,
        util=measured.util,
        memory_used=measured.mem,
        watts=measured.watts,
        celsius=measured.celsius,
        mhz=measured.mhz,
        ecc_errors=measured.ecc,
        throttled=None if measured.throttled is None else bool(measured.throttled),
        nvlink_errors=measured.nvlink_errors,
    )
