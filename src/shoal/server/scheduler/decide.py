"""The scheduler's decision, as a pure function of a snapshot: no clock, no database, no side effects.

Strict order: by priority, then submission. A job that does not fit holds back all behind it, so none starves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    name: str
    slots: int
    used: frozenset[int] = frozenset()

    @property
    def free(self) -> list[int]:
        return [s for s in range(self.slots) if s not in self.used]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    job_id: str
    priority: int
    order: tuple[float, str]
    """Submission time and id: what FIFO means."""
    min_nodes: int
    max_nodes: int
    accels: int


@dataclass(frozen=True, slots=True)
class Placement:
    """One node of a gang: a machine and the slots it gets there."""

    machine: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    starts: list[tuple[str, list[Placement]]] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)
    """Job id → why it waits, in words for people."""


def decide(machines: Sequence[MachineState], queue: Iterable[QueuedJob]) -> Decision:
    free = {m.name: m.free for m in machines}
    decision = Decision()
    head: QueuedJob | None = None
    for position, job in enumerate(sorted(queue, key=lambda j: (-j.priority, j.order))):
        if head is not None:
            decision.waiting[job.job_id] = f"place {position - len(decision.starts) + 1} in the queue"
            continue
        gang = place(free, job)
        if gang is None:
            head = job
            total = sum(len(slots) for slots in free.values())
            need = f"{job.min_nodes} × {job.accels} slots" if job.min_nodes > 1 else _slots(job.accels)
            decision.waiting[job.job_id] = f"next in line; needs {need}, {total} free now"
            continue
        for node in gang:
            free[node.machine] = [s for s in free[node.machine] if s not in node.slots]
        decision.starts.append((job.job_id, gang))
    return decision


def place(free: dict[str, list[int]], job: QueuedJob) -> list[Placement] | None:
    """Up to max_nodes nodes, filling the emptiest machines first so that a gang is spread least; None below min_nodes."""
    gang: list[Placement] = []
    for machine in sorted(free, key=lambda name: (-len(free[name]), name)):
        slots = free[machine]
        while len(slots) >= job.accels and len(gang) < job.max_nodes:
            gang.append(Placement(machine, tuple(slots[: job.accels])))
            slots = slots[job.accels :]
    return gang if len(gang) >= job.min_nodes else None


def largest_possible(machines: Sequence[MachineState], accels: int) -> tuple[int, int]:
    """(nodes, accels) of the largest request the empty pool could run, keeping `accels` if any machine has as many."""
    biggest = max((m.slots for m in machines), default=0)
    accels = min(accels, biggest)
    return (sum(m.slots // accels for m in machines) if accels else 0), accels


def _slots(count: int) -> str:
    return f"{count} slot{'s' if count != 1 else ''}"
