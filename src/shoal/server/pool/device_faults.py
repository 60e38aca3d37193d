"""Accelerators that fail under running jobs, as their drivers tell: the device is drained and the attempt ended, so that the job
continues elsewhere at once instead of hanging in a collective."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from sqlalchemy.orm import Session

from shoal.agent.devices.device import Device
from shoal.core.agents import GpuGauge
from shoal.core.faults import XIDS_FATAL, XIDS_WORN
from shoal.core.states import NodeState
from shoal.engines.base import Machine
from shoal.server.context import Context
from shoal.server.jobs import attempts
from shoal.server.jobs.events import record_event
from shoal.server.models.jobs import Attempt, Job
from shoal.server.pool import device_drains

logger = logging.getLogger(__name__)


class OpenNode(Protocol):
    @property
    def attempt_id(self) -> str: ...
    @property
    def job_id(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def machine(self) -> str: ...
    @property
    def slots(self) -> tuple[int, ...]: ...
    @property
    def over(self) -> bool: ...
    @property
    def state(self) -> NodeState: ...


class DeviceFaults:
    """Looks for faults under running jobs. Used by the scheduler's thread only, which owns `_handled`."""

    def __init__(self, ctx: Context):
        self._ctx = ctx
        self._handled: set[tuple[str, str]] = set()
        """(attempt, device) whose fault was acted on; it stays in the drivers' reports."""

    def watch(self, nodes: Iterable[OpenNode], machines: Sequence[Machine]) -> None:
        """Drain the devices that have failed under these nodes, and end the attempts that ran on them."""
        by_name = {machine.name: machine for machine in machines if machine.inventory}
        running = [node for node in nodes if not node.state.is_terminal and node.machine in by_name]
        self._handled &= {(node.attempt_id, uuid) for node in running for uuid in _uuids(by_name[node.machine], node)}
        for node in running:
            machine = by_name[node.machine]
            gauges = self._ctx.gauges.of(machine.name)
            for place, slot in enumerate(node.slots):
                device = machine.inventory[slot] if slot < len(machine.inventory) else None
                if device is None or (node.attempt_id, device.identity) in self._handled:
                    continue
                reason, is_fatal = fault_of(device, gauges)
                if reason:
                    self._handled.add((node.attempt_id, device.identity))
                    rank = node.index * len(node.slots) + place
                    self._act(node, machine, device, rank, f"{device.label}: {reason}", ends=is_fatal and not node.over)

    def _act(self, node: OpenNode, machine: Machine, device: Device, rank: int, reason: str, *, ends: bool) -> None:
        """Drain a device; end the attempt on it, except for a rented machine, whose person decides."""
        device_drains.change(self._ctx, machine.name, [device.identity], draining=True, reason=reason[:300])
        logger.warning("%s of '%s' is drained: %s", device.label, machine.name, reason)

        def work(session: Session) -> None:
            attempt, job = session.get_one(Attempt, node.attempt_id), session.get_one(Job, node.job_id)
            is_lease = job.kind == "lease"
            what = (
                "end it to get another device"
                if is_lease
                else "other devices are used"
                if ends
                else "it takes no new jobs"
            )
            text = f"{device.label} of '{machine.name}' is drained after a hardware fault; {what}"
            record_event(session, job, "device", text, attempt=attempt.number, data={"reason": reason})
            if ends and not is_lease:
                attempts.blame(session, attempt, node.index, rank, reason)

        self._ctx.db.write(partial(work), essential=True)
        self._ctx.live.job_changed(node.job_id)


def fault_of(device: Device, gauges: Mapping[str, GpuGauge]) -> tuple[str, bool]:
    """Return what is wrong with a device's hardware, and whether jobs that run on it must end; an empty text if nothing is."""
    if device.is_faulty:
        return device.problem, True
    gauge = gauges.get(device.identity)
    if gauge is None:
        return "", False
    if gauge.xid in XIDS_FATAL:
        return f"Xid {gauge.xid}: {XIDS_FATAL[gauge.xid]}", True
    if gauge.ecc:
        return f"{gauge.ecc:.0f} uncorrectable ECC error{'s' if gauge.ecc != 1 else ''} since the last reset", True
    if gauge.xid in XIDS_WORN:
        return f"Xid {gauge.xid}: {XIDS_WORN[gauge.xid]}", False
    return "", False


def _uuids(machine: Machine, node: OpenNode) -> list[str]:
    return [machine.inventory[slot].identity for slot in node.slots if slot < len(machine.inventory)]
