"""Kinds of slots (cpu, cuda, rocm, xpu): which of them a job may use, in which order. A gang is always of one kind.

`auto`, the default, means accelerators where the pool has any that could hold the job, else CPUs. Machines that are lost or
drained count for that: a job must not train on CPUs because a GPU machine is away for an hour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.server.scheduler.model import MachineState, QueuedJob, Snapshot

CPU, AUTO, ANY = "cpu", "auto", "any"


@dataclass(frozen=True, slots=True)
class Choice:
    """Kinds a job may use."""

    groups: tuple[tuple[str, ...], ...]
    """Preferred ones first; kinds of one group are equally good."""
    kinds: frozenset[str]
    only: str | None
    """The kind, where there is just one."""


class Kinds:
    """Kind of every machine of the pool, in service or not."""

    def __init__(self, machines: Iterable[MachineState]):
        self.of: dict[str, str] = {}
        """Machine → its kind."""
        self._slots: dict[str, list[tuple[str, int]]] = {}
        for machine in machines:
            self.of[machine.name] = machine.kind
            if machine.slots:
                self._slots.setdefault(machine.kind, []).append((machine.name, machine.slots))
        self._accelerators = tuple(sorted(kind for kind in self._slots if kind != CPU))
        self._by_device: dict[str, Choice] = {}
        self._auto: dict[tuple[int, int, frozenset[str]], Choice] = {}

    @classmethod
    def seen(cls, snapshot: Snapshot) -> Kinds:
        return cls([*snapshot.machines, *snapshot.away])

    def choice(self, job: QueuedJob) -> Choice:
        if job.device == AUTO and self._accelerators:
            asked = (job.accels, job.min_nodes, job.exclude)
            found = self._auto.get(asked)
            if found is None:
                found = self._auto[asked] = self._choose(job)
            return found
        found = self._by_device.get(job.device)
        if found is None:
            found = self._by_device[job.device] = self._choose(job)
        return found

    def allowed(self, job: QueuedJob) -> frozenset[str]:
        return self.choice(job).kinds

    def may_use(self, job: QueuedJob, machine: str) -> bool:
        return self.of.get(machine) in self.choice(job).kinds and machine not in job.exclude

    def words(self, job: QueuedJob) -> str:
        """The kinds a job may use, as an adjective of slots; empty where the pool gives it no choice to speak of."""
        if job.device in (AUTO, ANY) and (len(self._slots) < 2 or self.allowed(job) >= self._slots.keys()):
            return ""
        return " or ".join(sorted(self.allowed(job))) + " "

    @property
    def are_several(self) -> bool:
        return len(self._slots) > 1

    def _choose(self, job: QueuedJob) -> Choice:
        groups: tuple[tuple[str, ...], ...] = (self._accelerators, (CPU,)) if self._accelerators else ((CPU,),)
        if job.device == AUTO:
            holding = tuple(kind for kind in self._accelerators if self._could_hold(kind, job))
            if holding:
                groups = (holding,)
            elif self._could_hold(CPU, job):
                groups = ((CPU,),)
            # Else nothing could, and it waits for whatever comes.
        elif job.device != ANY:
            groups = ((job.device,),)
        kinds = [kind for group in groups for kind in group]
        return Choice(groups, frozenset(kinds), kinds[0] if len(kinds) == 1 else None)

    def _could_hold(self, kind: str, job: QueuedJob) -> bool:
        nodes: dict[str, int] = {}
        for machine, slots in self._slots.get(kind, ()):
            if machine not in job.exclude:
                nodes[zone(machine)] = nodes.get(zone(machine), 0) + slots // job.accels
        return max(nodes.values(), default=0) >= job.min_nodes


def zone(machine: str) -> str:
    """Return the part of its name before the colon. A gang is all in one zone: a cluster with a queue of its own is one."""
    return machine.partition(":")[0] if ":" in machine else ""


def by_zone(counts: Iterable[tuple[str, int]]) -> dict[str, dict[str, int]]:
    zones: dict[str, dict[str, int]] = {}
    for machine, count in counts:
        zones.setdefault(zone(machine), {})[machine] = count
    return zones
