"""Machines and slots that a job avoids after an attempt failed there because of a hardware or network fault. Pure.

Other machines are tried first, then other slots of the same machines. If the pool has neither, the failed place is used
again after a pause that doubles with each failure. An accelerator that failed itself is never used again for that job.
The number of restarts is limited elsewhere (restarts.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shoal.core.faults import Fault, classify, is_before_start
from shoal.server.scheduler.free_slots import choose, fits
from shoal.server.scheduler.kinds import Choice, Kinds
from shoal.server.scheduler.model import Avoided, MachineState, QueuedJob

PAUSE_LEAST_S, PAUSE_MOST_S = 5.0, 300.0
_COUNTS_FOR_S = 3_600.0
"""Failures older than this, seen from the newest, no longer lengthen the pause."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A node that failed, and why."""

    attempt: int
    machine: str
    slots: Sequence[int]
    reason: str
    at: float
    index: int = 0
    """Number of the node in its gang."""
    rank: int | None = None
    """Rank that failed; None if unknown."""


def failed_slot(slots: Sequence[int], index: int, rank: int | None) -> int | None:
    """Return the slot of the rank that failed; None if it is unknown. All nodes of an attempt have as many slots."""
    if len(slots) == 1:
        return slots[0]
    local = -1 if rank is None else rank - index * len(slots)
    return slots[local] if 0 <= local < len(slots) else None


def avoided(ended: Iterable[Ended]) -> Avoided | None:
    """Return the places that the next attempt of a job avoids, given all its failed nodes; None if there are none."""
    faults = [(node, classify(node.reason)) for node in ended]
    causes = {node.attempt for node, fault in faults if fault is not Fault.NETWORK}
    faulty = [
        node
        for node, fault in faults
        if fault is not None
        and fault.is_infrastructure
        # A broken connection is a consequence if anything else failed in the same attempt.
        and not (fault is Fault.NETWORK and node.attempt in causes)
    ]
    if not faulty:
        return None
    last = max(node.at for node in faulty)
    recent = {node.attempt for node in faulty if last - node.at <= _COUNTS_FOR_S}
    pause = min(PAUSE_LEAST_S * 2.0 ** min(len(recent) - 1, 16), PAUSE_MOST_S)
    # A device whose memory others used is not broken; it is drained, and may be used once an admin has looked at it.
    broken = [node for node, fault in faults if fault is Fault.DEVICE and not is_before_start(node.reason)]
    devices = ((node.machine, failed_slot(node.slots, node.index, node.rank)) for node in broken)
    return Avoided(
        frozenset((node.machine, slot) for node in faulty for slot in node.slots),
        last + pause,
        never=frozenset((machine, slot) for machine, slot in devices if slot is not None),
    )


def failed_devices(job: QueuedJob, kinds: Kinds) -> dict[str, set[int]]:
    """Return machine → slots of accelerators that failed the job. Slots of a CPU are no devices: any is as good."""
    found: dict[str, set[int]] = {}
    for machine, slot in job.avoided.never if job.avoided is not None else ():
        if kinds.is_accelerator(machine):
            found.setdefault(machine, set()).add(slot)
    return found


def fits_apart(machines: Sequence[MachineState], job: QueuedJob, kinds: Kinds) -> bool:
    """Return whether the job would fit on these machines, all of them free, without the devices that failed it."""
    failed = failed_devices(job, kinds)
    return fits(
        ((m.name, m.slots - len(failed.get(m.name, set()) & set(m.numbers or range(m.slots)))) for m in machines),
        job,
        kinds,
    )


def choose_apart(
    free: Mapping[str, int],
    slots: Mapping[str, Sequence[int]],
    machines: Sequence[MachineState],
    job: QueuedJob,
    most: int,
    now: float,
    kinds: Kinds,
    choice: Choice | None = None,
) -> dict[str, int] | None:
    """Return machine → number of nodes for a job that avoids places, or None if it has to wait.

    `free` is the number of slots it may take on each machine; `slots` lists the free slots. `choice`: the kinds it may use,
    if fewer than its request allows.
    """
    assert job.avoided is not None  # noqa: S101
    avoid, pausing = job.avoided, now < job.avoided.until
    free = without_failed(free, slots, failed_devices(job, kinds))
    if found := choose({m: n for m, n in free.items() if m not in avoid.machines}, job, most, kinds, choice):
        return found
    if pausing and fits(((m.name, m.slots) for m in machines if m.name not in avoid.machines), job, kinds):
        return None
    apart = {m: min(n, sum((m, slot) not in avoid.slots for slot in slots[m])) for m, n in free.items()}
    if found := choose(apart, job, most, kinds, choice):
        return found
    return None if pausing else choose(free, job, most, kinds, choice)


def without_failed(
    free: Mapping[str, int], slots: Mapping[str, Sequence[int]], failed: Mapping[str, set[int]]
) -> dict[str, int]:
    """Return the number of slots a job may take on each machine, without free devices that failed it."""
    usable = dict(free)
    for machine in failed.keys() & free.keys():
        usable[machine] = min(free[machine], sum(slot not in failed[machine] for slot in slots[machine]))
    return usable


def last_resort(machine: str, slots: Sequence[int], job: QueuedJob, kinds: Kinds) -> list[int]:
    """Return the free slots of a machine that the job may use, those to avoid last."""
    if job.avoided is None:
        return list(slots)
    bad, failed = job.avoided.slots, failed_devices(job, kinds).get(machine, set())
    return sorted((s for s in slots if s not in failed), key=lambda slot: ((machine, slot) in bad, slot))
