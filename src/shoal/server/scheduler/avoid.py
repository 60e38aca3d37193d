"""Places a job is not tried on again at once: machines and slots on which one of its attempts met a fault of theirs. Pure.

Other machines come first, then other slots of the same machines. Only if the pool has neither is the place that
failed used again, after a pause that doubles with each failure. The number of restarts is bounded elsewhere (restarts.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shoal.core.faults import Fault, classify
from shoal.server.scheduler.kinds import Kinds
from shoal.server.scheduler.model import Avoided, MachineState, QueuedJob
from shoal.server.scheduler.room import choose, fits

PAUSE_LEAST_S, PAUSE_MOST_S = 5.0, 300.0
_COUNTS_FOR_S = 3_600.0
"""Failures older than this, seen from the newest, no longer lengthen the pause."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A node that failed by itself."""

    attempt: int
    machine: str
    slots: Sequence[int]
    reason: str
    at: float


def avoided(ended: Iterable[Ended]) -> Avoided | None:
    """Return what the next attempt of a job avoids, after all its nodes that failed so far."""
    faults = [(node, classify(node.reason)) for node in ended]
    causes = {node.attempt for node, fault in faults if fault is not Fault.NETWORK}
    faulty = [
        node
        for node, fault in faults
        if fault is not None
        and fault.is_infrastructure
        # A broken connection follows from whatever else failed in the same attempt.
        and not (fault is Fault.NETWORK and node.attempt in causes)
    ]
    if not faulty:
        return None
    last = max(node.at for node in faulty)
    recent = {node.attempt for node in faulty if last - node.at <= _COUNTS_FOR_S}
    pause = min(PAUSE_LEAST_S * 2.0 ** min(len(recent) - 1, 16), PAUSE_MOST_S)
    return Avoided(frozenset((node.machine, slot) for node in faulty for slot in node.slots), last + pause)


def choose_apart(
    free: Mapping[str, int],
    slots: Mapping[str, Sequence[int]],
    machines: Sequence[MachineState],
    job: QueuedJob,
    most: int,
    now: float,
    kinds: Kinds,
) -> dict[str, int] | None:
    """Machine → number of nodes for a job that avoids places. `free`: how many slots it may take; `slots`: which are free."""
    assert job.avoided is not None  # noqa: S101
    avoid, pausing = job.avoided, now < job.avoided.until
    if found := choose({m: n for m, n in free.items() if m not in avoid.machines}, job, most, kinds):
        return found
    if pausing and fits(((m.name, m.slots) for m in machines if m.name not in avoid.machines), job, kinds):
        return None
    apart = {m: min(n, sum((m, slot) not in avoid.slots for slot in slots[m])) for m, n in free.items()}
    if found := choose(apart, job, most, kinds):
        return found
    return None if pausing else choose(free, job, most, kinds)


def last_resort(machine: str, slots: Sequence[int], job: QueuedJob) -> list[int]:
    """The free slots of a machine, those to avoid last."""
    bad = job.avoided.slots if job.avoided is not None else frozenset()
    return sorted(slots, key=lambda slot: ((machine, slot) in bad, slot)) if bad else list(slots)
