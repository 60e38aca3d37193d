"""Machines as the decision sees them: each part has devices of one model only. Pure.

A machine with two models of GPUs is two machines for the decision, "box (Tesla T4)" and "box (A100)", because a node never
mixes models. Devices that are broken or drained belong to no part. `host` leads back to the real machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.agent.devices.device import Device
from shoal.core.gpu_models import short_model
from shoal.engines.base import Machine
from shoal.server.scheduler.model import Avoided, MachineState, QueuedJob

_BEGIN = " ("
"""Start of a part's own name. No machine has a space in its name."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of all machines, and the part of every slot."""

    states: list[MachineState]
    broken: list[MachineState]
    """Devices that cannot be used now, as machines that are out of service."""
    of_slot: Mapping[tuple[str, int], str]
    """(machine, slot) → part, for machines with several parts or unusable slots only."""
    split: frozenset[str]
    """Machines whose parts are listed in `of_slot`."""

    def counted(self, machine: str, slots: Iterable[int]) -> dict[str, int]:
        """Return part → number of these slots; unusable slots are left out."""
        if machine not in self.split:
            count = len(list(slots))
            return {machine: count} if count else {}
        found: dict[str, int] = {}
        for slot in slots:
            part = self.of_slot.get((machine, slot))
            if part is not None:
                found[part] = found.get(part, 0) + 1
        return found

    def expanded(self, job: QueuedJob) -> QueuedJob:
        """Return the job with the names of parts where its request names a machine that has several."""
        if not self.split or not (job.exclude or job.prefer or job.avoided):
            return job
        avoided = job.avoided
        if avoided is not None:
            places, never = (self._parts_of(slots) for slots in (avoided.slots, avoided.never))
            avoided = Avoided(places, avoided.until, never=never)
        return replace(job, exclude=self._named(job.exclude), prefer=self._named(job.prefer), avoided=avoided)

    def _parts_of(self, places: Iterable[tuple[str, int]]) -> frozenset[tuple[str, int]]:
        return frozenset((self.of_slot.get(place, place[0]), place[1]) for place in places)

    def _named(self, machines: Collection[str]) -> frozenset[str]:
        more = {part for (machine, _), part in self.of_slot.items() if machine in machines}
        return frozenset(machines) | more


def host(part: str) -> str:
    """Return the machine that a part belongs to."""
    return part.partition(_BEGIN)[0]


def split_machines(machines: Sequence[Machine], used: Mapping[str, Collection[int]]) -> Parts:
    """Return the parts of these machines. `used` lists the slots that are taken."""
    parts = Parts([], [], {}, frozenset())
    of_slot: dict[tuple[str, int], str] = {}
    split: set[str] = set()
    for machine in machines:
        taken = frozenset(used.get(machine.name, ()))
        groups = _groups(machine)
        broken = [slot for slot, device in enumerate(machine.inventory) if device.problem]
        if len(groups) == 1 and not broken:
            parts.states.append(_state(machine, machine.name, groups[0], machine.slots, taken))
            continue
        split.add(machine.name)
        for group in groups:
            name = _name(machine, group) if len(groups) > 1 else machine.name
            mine = frozenset(taken & set(group.slots))
            numbers = tuple(group.slots)
            parts.states.append(_state(machine, name, group, len(numbers), mine, numbers))
            of_slot |= {(machine.name, slot): name for slot in group.slots}
        parts.broken.extend(_out_of_service(machine, groups, broken))
    return Parts(parts.states, parts.broken, of_slot, frozenset(split))


def away(machine: Machine, state: str) -> list[MachineState]:
    """Return the parts of a machine that is out of service as a whole."""
    groups = _groups(machine)
    return [
        replace(_state(machine, _name(machine, g) if len(groups) > 1 else machine.name, g, len(g.slots)), state=state)
        for g in groups
    ]


@dataclass(frozen=True, slots=True)
class _Group:
    model: str
    memory: int | None
    slots: list[int]


def _groups(machine: Machine) -> list[_Group]:
    """Return the slots of a machine by model; unusable ones are left out unless nothing else is there."""
    found: dict[str, _Group] = {}
    usable = [(slot, d) for slot, d in enumerate(machine.inventory) if not d.problem]
    for slot, device in usable:
        model = _model(device)
        group = found.setdefault(model, _Group(model, device.memory, []))
        group.slots.append(slot)
    if not found:
        empty = bool(machine.inventory)
        model, memory = (_model(machine.inventory[0]), machine.inventory[0].memory) if empty else ("", None)
        return [_Group(model, memory, [] if empty else list(range(machine.slots)))]
    return [found[model] for model in sorted(found)]


def _model(device: Device) -> str:
    return short_model(device.model)


def _out_of_service(machine: Machine, groups: Sequence[_Group], broken: Sequence[int]) -> list[MachineState]:
    """Return the unusable devices by model, under the names of the parts they belong to."""
    names = {g.model: _name(machine, g) if len(groups) > 1 else machine.name for g in groups}
    found: dict[str, MachineState] = {}
    for slot in broken:
        device = machine.inventory[slot]
        model = _model(device)
        known = found.get(model)
        count = (known.slots if known else 0) + 1
        state = f"missing {count} device{'s' if count > 1 else ''} ({device.problem})"
        group = next((g for g in groups if g.model == model), _Group(model, device.memory, []))
        name = names.get(model) or _name(machine, group)
        found[model] = replace(_state(machine, name, group, count), state=state)
    return list(found.values())


def _name(machine: Machine, group: _Group) -> str:
    return f"{machine.name}{_BEGIN}{group.model or machine.kind})"


def _state(
    machine: Machine,
    name: str,
    group: _Group,
    slots: int,
    used: frozenset[int] = frozenset(),
    numbers: tuple[int, ...] = (),
) -> MachineState:
    return MachineState(
        name=name,
        slots=slots,
        used=used,
        kind=machine.kind,
        model=group.model,
        memory=group.memory,
        places=_places(machine, group.slots),
        labels=frozenset(f"{key}={value}" for key, value in machine.labels.items()),
        numbers=numbers,
    )


def _places(machine: Machine, slots: Sequence[int]) -> dict[int, tuple[int | None, int | None]]:
    """Return the place of each slot; empty if all are connected alike."""
    devices = machine.inventory
    found = {slot: (devices[slot].island, devices[slot].numa) for slot in slots if slot < len(devices)}
    return found if len(set(found.values())) > 1 else {}
