"""What is kept for the head of the queue: when and where it will start, and which running jobs must make way for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shoal.server.scheduler.model import MachineState, Policy, QueuedJob, Reservation, RunningJob
from shoal.server.scheduler.room import by_zone, choose, fits, zone


def reserve(
    free: Mapping[str, int], running: Iterable[RunningJob], job: QueuedJob, ending: Mapping[str, float]
) -> Reservation | None:
    """The earliest moment at which the running jobs have left enough. None if even all their slots are too few.

    `ending` overrules when a running job is held to end: those being preempted. One of which nothing is known ends
    after all others, the longest-running first.
    """
    counts, unknown = _Counts(free, job), float("inf")
    moment, fits = 0.0, False
    for end, _, _, leaving in sorted(_ends(running, ending), key=lambda e: e[:3]):
        if fits and (end > moment or end == unknown):
            break  # those that end at the very moment leave their slots to others
        moment, fits = end, counts.add(leaving)
    if not fits:
        return None
    nodes = choose(counts.free, job, job.min_nodes) or {}
    room = {m: n - nodes.get(m, 0) * job.accels for m, n in counts.free.items()}
    return Reservation(job_id=job.job_id, starts_in_s=None if moment == unknown else moment, nodes=nodes, room=room)


def victims(free: Mapping[str, int], running: Sequence[RunningJob], job: QueuedJob) -> list[RunningJob]:
    """The running jobs of strictly lower priority to end for this one: the least important and youngest that do."""
    counts = _Counts(free, job)
    for leaving in running:
        if leaving.stopping and counts.add(leaving):
            return []  # enough is on its way already
    chosen = []
    for candidate in sorted(running, key=lambda r: (r.priority, -r.started, r.job_id)):
        if candidate.priority >= job.priority or candidate.keeps or candidate.stopping:
            continue
        if not any(m in counts.free and m not in job.exclude for m in candidate.slots):
            continue
        chosen.append(candidate)
        if counts.add(candidate):
            return _needed(counts, chosen)
    return []


def could_ever(machines: Iterable[MachineState], job: QueuedJob) -> bool:
    return fits(((m.name, m.slots) for m in machines), job)


def is_brief(job: QueuedJob, reservation: Reservation, policy: Policy) -> bool:
    """Sure to be over when the head is to start."""
    until = reservation.starts_in_s
    return until is not None and job.limit_s is not None and job.limit_s + policy.grace_s <= until


def _ends(running: Iterable[RunningJob], ending: Mapping[str, float]) -> Iterable[tuple[float, float, str, RunningJob]]:
    for job in running:
        end = ending.get(job.job_id, job.ends_in_s)
        yield float("inf") if end is None else max(0.0, end), job.started, job.job_id, job


class _Counts:
    """Free slots as jobs leave, and how many nodes of one job they would hold."""

    def __init__(self, free: Mapping[str, int], job: QueuedJob):
        self.free, self._job = dict(free), job
        found = by_zone((m, n // job.accels) for m, n in free.items() if m not in job.exclude)
        self._nodes = {name: sum(part.values()) for name, part in found.items()}

    def add(self, leaving: RunningJob, sign: int = 1) -> bool:
        """Whether the job has room now."""
        accels = self._job.accels
        for machine, count in leaving.slots.items():
            before = self.free.get(machine)
            if before is None:
                continue  # a machine that takes no new jobs
            self.free[machine] = after = before + sign * count
            if machine not in self._job.exclude:
                self._nodes[zone(machine)] += after // accels - before // accels
        return max(self._nodes.values(), default=0) >= self._job.min_nodes


def _needed(counts: _Counts, chosen: list[RunningJob]) -> list[RunningJob]:
    """Without those that turn out to be spared, the most important ones looked at first."""
    needed = []
    for candidate in reversed(chosen):
        if not counts.add(candidate, -1):
            counts.add(candidate)
            needed.append(candidate)
    return needed[::-1]
