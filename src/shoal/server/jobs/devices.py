"""Kinds of slots a job may use on the current pool, and errors for jobs that the pool can never run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from shoal.agent.devices.binding import RESERVED
from shoal.core.errors import CanNeverRun, InvalidSpec
from shoal.core.gpu_models import is_slice, short_model
from shoal.core.jobs import JobSpec
from shoal.engines.base import Machine
from shoal.engines.kinds import kinds
from shoal.server.scheduler.decide import MachineState, largest_possible
from shoal.server.scheduler.kinds import Kinds, kind_of
from shoal.server.scheduler.machine_parts import split_machines
from shoal.server.scheduler.model import QueuedJob

_MOST_NAMED = 8


class SlotRequest(Protocol):
    """Anything that requests slots: a job or a quote."""

    @property
    def min_nodes(self) -> int: ...
    @property
    def max_nodes(self) -> int: ...
    @property
    def accels(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def gpu(self) -> str | None: ...
    @property
    def gpu_memory_gb(self) -> float | None: ...
    @property
    def labels(self) -> Mapping[str, str]: ...


def refuse_unknown_options(spec: JobSpec) -> None:
    """Raise InvalidSpec for an option of a cluster that no installed kind of engine lets jobs give."""
    known = sorted(name for kind in kinds().values() for name in kind.job_options)
    if unknown := sorted(spec.engine_options.keys() - set(known)):
        raise InvalidSpec(
            f"No engine of this server has an option '{unknown[0]}' for jobs.",
            hint=f"--engine-option NAME=VALUE, where NAME is one of: {', '.join(known) or 'none'}",
        )


def usable_kinds(machines: Iterable[Machine], asked: SlotRequest, exclude: Collection[str] = ()) -> frozenset[str]:
    """Return the kinds of slots the pool has that the job may use; empty if there are none."""
    return frozenset(kind for kind, _ in usable_models(machines, asked, exclude))


def usable_models(
    machines: Iterable[Machine], asked: SlotRequest, exclude: Collection[str] = ()
) -> frozenset[tuple[str, str]]:
    """Return the kinds and models of slots the pool has that the job may use; the model is empty where none is known."""
    states = _states([m for m in machines if m.slots and m.name not in exclude])
    kinds = Kinds(states)
    return frozenset((m.kind, m.model) for m in states if kinds.may_use(_queued(asked), m.name))


def refuse_impossible(
    machines: Sequence[Machine], asked: SlotRequest, *, exclude: Collection[str] = (), private: bool = False
) -> None:
    """Raise CanNeverRun unless these machines, all of them free, could run this on slots that may be in one gang."""
    pool = [m for m in machines if m.name not in exclude]
    nodes, accels = largest_possible(_states(pool), _queued(asked))
    if accels == asked.accels and nodes >= asked.min_nodes:
        return
    details = {"nodes": nodes, "accels": accels}
    has = "the pool without the excluded machines has" if exclude else "the pool has"
    total = sum(m.slots for m in pool)
    if not total:
        hint = "shoal up --slots auto" if private else "shoal pool add USER@HOST"
        raise CanNeverRun(f"No job can run here: {has} no slots.", hint=hint, details=details)
    if not nodes and only_slices(pool, asked):
        raise CanNeverRun(
            f"Only MIG slices match {_wanted(asked)}, and they work alone: a process sees one of them, and NCCL connects none.",
            hint="--accels 1 and one node; a sweep runs many jobs at once.",
            details=details,
        )
    if not nodes:
        hint = "shoal machine list" if _demands(asked) else "--device any uses any free slots; see: shoal machine list"
        raise CanNeverRun(f"No machine with {_wanted(asked)}; {has}: {describe(pool)}.", hint=hint, details=details)
    what = f"{len(pool)} machine{'s' if len(pool) != 1 else ''} with {total} slot{'s' if total != 1 else ''}"
    if len({m.kind for m in pool if m.slots}) > 1 or len({kind_of(m) for m in _states(pool) if m.slots}) > 1:
        what += f": {describe(pool)}. All slots of a job are of one kind"
        what += " and model" if any(m.model for m in _states(pool)) and not _queued(asked).mixed_models else ""
    kind = "" if asked.device in ("auto", "any") else f"{asked.device} "
    given = f" --device {asked.device}" if kind else ""
    given += f" --gpu '{asked.gpu}'" if asked.gpu else ""
    hint = "shoal machine list"
    if private and total < asked.min_nodes * asked.accels and all(m.kind == "cpu" for m in pool):
        hint = f"shoal up --slots {asked.min_nodes * asked.accels}"  # CPUs can be shared by more jobs; GPUs are as many as they are
    elif asked.max_nodes > 1 and _fits(pool, replace(_queued(asked), mixed_models=True)):
        hint = "--mixed-models allows nodes with different models of GPUs."
    raise CanNeverRun(
        f"{asked.min_nodes} node(s) × {asked.accels} {kind}slot(s) can never run here: {has} {what}. "
        f"The largest that could: --nodes {nodes} --accels {accels}{given}.",
        hint=hint,
        details=details,
    )


def _fits(machines: Sequence[Machine], job: QueuedJob) -> bool:
    nodes, accels = largest_possible(_states(machines), job)
    return accels == job.accels and nodes >= job.min_nodes


def only_slices(machines: Sequence[Machine], asked: SlotRequest) -> bool:
    """Return whether a request for several workers could run on MIG slices if it asked for one."""
    states, alone = _states(machines), replace(_queued(asked), accels=1, min_nodes=1, max_nodes=1)
    kinds = Kinds(states)
    usable = [m for m in states if m.slots and kinds.may_use(alone, m.name)]
    return bool(usable) and all(is_slice(m.model) for m in usable)


def refuse_device_variables(spec: JobSpec) -> None:
    """Raise InvalidSpec if a job sets a variable that decides which devices it sees. Stored jobs may still have them."""
    for name in sorted(RESERVED & (spec.env.keys() | spec.secrets.keys())):
        raise InvalidSpec(
            f"{name} is set by Shoal: it gives every job its own devices, and another value would use those of other jobs.",
            hint="--accels N chooses how many, --gpu MODEL which model, and --device cpu none.",
        )


def describe(machines: Sequence[Machine]) -> str:
    """Describe machines in one line: `local (cpu, 4 slots), gpu1 (cuda, 8 slots, draining)`."""
    words = [_described(m) for m in machines[:_MOST_NAMED]]
    more = len(machines) - len(words)
    return ", ".join(words) + (f" and {more} more" if more else "")


def _described(machine: Machine) -> str:
    state = "" if machine.state == "up" else f", {machine.state}"
    models = Counter(short_model(device.model) for device in machine.inventory if device.model)
    words = "".join(f", {count} × {model}" for model, count in sorted(models.items()))
    return f"{machine.name} ({machine.kind}, {machine.slots} slot{'s' if machine.slots != 1 else ''}{words}{state})"


def _demands(asked: SlotRequest) -> bool:
    return bool(asked.gpu or asked.gpu_memory_gb or asked.labels)


def _wanted(asked: SlotRequest) -> str:
    """Return what a request needs, in words: "H100 GPUs of 80 GB or more and rack=a"."""
    kind = f"{asked.gpu} GPUs" if asked.gpu else "GPUs" if asked.gpu_memory_gb else f"{asked.device} slots"
    kind = "accelerators" if kind == "gpu slots" else kind
    size = f" of {asked.gpu_memory_gb:g} GB or more" if asked.gpu_memory_gb else ""
    labels = ", ".join(f"{key}={value}" for key, value in sorted(asked.labels.items()))
    return kind.removeprefix("auto ") + size + (f" and {labels}" if labels else "")


def _queued(asked: SlotRequest) -> QueuedJob:
    return QueuedJob(
        job_id="",
        priority=0,
        order=(0.0, ""),
        min_nodes=asked.min_nodes,
        max_nodes=asked.max_nodes,
        accels=asked.accels,
        device=asked.device,
        gpu=asked.gpu or "",
        gpu_memory=int((asked.gpu_memory_gb or 0) * 1e9),
        mixed_models=getattr(asked, "mixed_models", False),
        labels=frozenset(f"{key}={value}" for key, value in asked.labels.items()),
    )


def _states(machines: Sequence[Machine]) -> list[MachineState]:
    """Return the machines with all their devices: those that are broken now may be repaired."""
    whole = [replace(m, inventory=tuple(replace(d, problem="") for d in m.inventory)) for m in machines]
    return split_machines(whole, {}).states
