"""Kinds of slots (cpu, cuda, rocm, xpu) and models of accelerators: which of them a job may use, and in which order.

A gang is of one kind and one model, unless its job allows several models: then its nodes may differ in model, never in kind.
`auto`, the default, means accelerators if the pool has any that could hold the job,
else CPUs. Lost and drained machines count here: a job must not train on CPUs because a GPU machine is down for an hour.
In this package a "kind" is a kind together with a model, such as "cuda H100 80GB HBM3 (85 GB)"; machines that tell no model
have the bare kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.core.gpu_models import is_model, is_slice
from shoal.server.scheduler.model import MachineState, QueuedJob, QueueState

CPU, GPU, AUTO, ANY = "cpu", "gpu", "auto", "any"


@dataclass(frozen=True, slots=True)
class Choice:
    """Kinds of slots a job may use."""

    groups: tuple[tuple[str, ...], ...]
    """Preferred ones first; kinds of one group are equally good, the one with the least memory comes first."""
    kinds: frozenset[str]
    only: str | None
    """The kind, if there is exactly one; else None."""


def kind_of(machine: MachineState) -> str:
    """Return the kind of a machine's slots together with the model of its accelerators."""
    if not machine.model and machine.memory is None:
        return machine.kind
    size = "" if machine.memory is None else f" ({round(machine.memory / 1e9)} GB)"
    return f"{machine.kind} {machine.model}{size}"


class Kinds:
    """Kind of every machine of the pool, including machines that are lost or drained."""

    def __init__(self, machines: Iterable[MachineState]):
        self.of: dict[str, str] = {}
        """Machine → its kind."""
        self._slots: dict[str, dict[str, int]] = {}
        self._of_kind: dict[str, MachineState] = {}
        """Kind → one of its machines."""
        self._labels: dict[str, frozenset[str]] = {}
        for machine in machines:
            kind = self.of[machine.name] = kind_of(machine)
            self._labels[machine.name] = machine.labels
            if machine.slots:
                part = self._slots.setdefault(kind, {})
                part[machine.name] = part.get(machine.name, 0) + machine.slots
                self._of_kind.setdefault(kind, machine)
        self._sizes: dict[str, dict[tuple[str, frozenset[str]], Counter[int]]] = {}
        """Kind → (zone, labels) → how many machines have how many slots; short even if the machines are many."""
        for kind, part in self._slots.items():
            sizes = self._sizes.setdefault(kind, {})
            for name, slots in part.items():
                sizes.setdefault((zone(name), self._labels[name]), Counter())[slots] += 1
        accelerators = (kind for kind in self._slots if kind != CPU)
        self._accelerators = tuple(sorted(accelerators, key=lambda kind: (self._of_kind[kind].memory or 0, kind)))
        self._by_device: dict[tuple[str, str, int, bool], Choice] = {}
        self._auto: dict[tuple[object, ...], Choice] = {}
        self._barred: dict[tuple[frozenset[str], frozenset[str]], frozenset[str]] = {}

    @classmethod
    def seen(cls, state: QueueState) -> Kinds:
        return cls([*state.machines, *state.away])

    def choice(self, job: QueuedJob) -> Choice:
        if job.device == AUTO and self._accelerators:
            size = (job.accels, job.min_nodes, is_single(job), job.mixed_models)
            asked = (job.gpu, job.gpu_memory, size, job.exclude, job.labels)
            found = self._auto.get(asked)
            if found is None:
                found = self._auto[asked] = self._choose(job)
            return found
        key = (job.device, job.gpu, job.gpu_memory, is_single(job))
        found = self._by_device.get(key)
        if found is None:
            found = self._by_device[key] = self._choose(job)
        return found

    def allowed(self, job: QueuedJob) -> frozenset[str]:
        return self.choice(job).kinds

    def barred(self, job: QueuedJob) -> frozenset[str]:
        """Return the machines a job must not use: those it excludes, and those without its labels."""
        if not job.labels:
            return job.exclude
        key = (job.exclude, job.labels)
        found = self._barred.get(key)
        if found is None:
            lacking = frozenset(m for m, labels in self._labels.items() if not job.labels <= labels)
            found = self._barred[key] = job.exclude | lacking
        return found

    def is_accelerator(self, machine: str) -> bool:
        return self.of.get(machine, CPU) != CPU

    def model_of(self, kind: str) -> str:
        """Return the model of the accelerators of a kind; empty if they tell none, or the kind is not in the pool."""
        machine = self._of_kind.get(kind)
        return machine.model if machine is not None else ""

    def is_whole(self, machine: str, free: int) -> bool:
        """Return whether all slots of a machine are free."""
        return self._slots.get(self.of[machine], {}).get(machine) == free

    def may_use(self, job: QueuedJob, machine: str) -> bool:
        return self.of.get(machine) in self.choice(job).kinds and machine not in self.barred(job)

    def words(self, job: QueuedJob) -> str:
        """Return the kinds a job may use as an adjective ("cuda "); empty if naming them would say nothing."""
        if job.gpu or job.gpu_memory:
            size = f"{job.gpu_memory / 1e9:g} GB or more" if job.gpu_memory else ""
            return (
                " ".join(filter(None, [job.gpu, f"({size})" if job.gpu and size else size, "GPU" if size else ""]))
                + " "
            )
        bare = {self._bare(kind) for kind in self._slots}
        allowed = {self._bare(kind) for kind in self.allowed(job)}
        if job.device in (AUTO, ANY) and (len(bare) < 2 or allowed >= bare):
            return ""
        return " or ".join(sorted(allowed)) + " "

    @property
    def are_several(self) -> bool:
        return len(self._slots) > 1

    @property
    def are_several_models(self) -> bool:
        return len({self._bare(kind) for kind in self._slots}) < len(self._slots)

    def _bare(self, kind: str) -> str:
        return kind.partition(" ")[0]

    def _choose(self, job: QueuedJob) -> Choice:
        accelerators = tuple(kind for kind in self._accelerators if self._is_wanted(kind, job))
        demands = bool(job.gpu or job.gpu_memory)
        cpu = ((CPU,),) if not demands else ()
        groups = (accelerators, *cpu) if accelerators else cpu
        if job.device == AUTO:
            holding = tuple(kind for kind in accelerators if self.could_hold(self.alike(kind, accelerators, job), job))
            if holding:
                groups = (holding,)
            elif cpu and self.could_hold((CPU,), job):
                groups = cpu
            # Else no machine could hold it: it waits for any kind.
        elif job.device == GPU:
            groups = (accelerators or (GPU,),) if not demands or accelerators else ()
        elif job.device != ANY:
            groups = (
                tuple(k for k in (*accelerators, *(cpu and (CPU,))) if self._bare(k) == job.device) or (job.device,),
            )
            if demands and groups == ((job.device,),):
                groups = ()
        kinds = [kind for group in groups for kind in group]
        return Choice(groups, frozenset(kinds), kinds[0] if len(kinds) == 1 else None)

    def _is_wanted(self, kind: str, job: QueuedJob) -> bool:
        machine = self._of_kind[kind]
        if is_slice(machine.model) and not is_single(job):
            return False
        return (not job.gpu or is_model(machine.model, job.gpu)) and (machine.memory or 0) >= job.gpu_memory

    def alike(self, kind: str, kinds: Iterable[str], job: QueuedJob) -> tuple[str, ...]:
        """Return those of `kinds` that may be in one gang of the job with `kind`: itself, unless the job allows several models."""
        if not job.mixed_models:
            return (kind,)
        return tuple(other for other in kinds if self._bare(other) == self._bare(kind))

    def group(self, job: QueuedJob, machine: str) -> tuple[str, str]:
        """Return the zone and the kind of a machine; a gang of the job never spans two of these."""
        kind = self.of[machine]
        return zone(machine), self._bare(kind) if job.mixed_models else kind

    def could_run(self, job: QueuedJob, choice: Iterable[str]) -> bool:
        """Return whether these machines, all of them free, could hold a job's smallest gang on some of these kinds."""
        kinds = tuple(choice)
        return any(self.could_hold(self.alike(kind, kinds, job), job) for kind in kinds)

    def could_hold(self, kinds: Iterable[str], job: QueuedJob) -> bool:
        """Return whether all machines of these kinds together, all of them free, could hold a job's smallest gang in a zone."""
        accels, nodes = job.accels, dict[str, int]()
        for kind in kinds:
            for (place, labels), sizes in self._sizes.get(kind, {}).items():
                if job.labels <= labels:
                    found = sum(count * (slots // accels) for slots, count in sizes.items())
                    nodes[place] = nodes.get(place, 0) + found
            for machine in job.exclude:
                slots = self._slots.get(kind, {}).get(machine, 0)
                if slots and job.labels <= self._labels[machine]:
                    nodes[zone(machine)] -= slots // accels
        return max(nodes.values(), default=0) >= job.min_nodes


def is_single(job: QueuedJob) -> bool:
    """Return whether a job has one worker at most. Only such jobs may use MIG slices: no two of them can work together."""
    return job.accels == 1 and job.max_nodes == 1


def zone(machine: str) -> str:
    """Return the part of a machine's name before the colon. A gang stays in one zone; a cluster with its own queue is one."""
    return machine.partition(":")[0] if ":" in machine else ""


def by_zone(counts: Iterable[tuple[str, int]]) -> dict[str, dict[str, int]]:
    zones: dict[str, dict[str, int]] = {}
    home: dict[str, int] = {}
    for machine, count in counts:
        if ":" in machine:
            zones.setdefault(zone(machine), {})[machine] = count
        else:  # by far the most common; this loop runs over all machines for every gang
            home[machine] = count
    return {"": home, **zones} if home else zones
