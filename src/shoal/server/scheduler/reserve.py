"""Reservations for the head of the queue: when and where it will start, and which running jobs are preempted for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shoal.server.scheduler.free_slots import choose, fits
from shoal.server.scheduler.kinds import Kinds
from shoal.server.scheduler.model import MachineState, Policy, QueuedJob, Reservation, RunningJob


def reserve(
    free: Mapping[str, int], running: Iterable[RunningJob], job: QueuedJob, ending: Mapping[str, float], kinds: Kinds
) -> Reservation | None:
    """Return the earliest start of a job as running jobs end; None if even all their slots are too few.

    `ending` (job id → seconds) overrides the expected end of jobs that are being stopped. Jobs with an unknown end are
    assumed to end after all others, the longest-running first.
    """
    counts, unknown = _Counts(free, job, kinds), float("inf")
    moment, fits = 0.0, False
    for end, _, _, leaving in sorted(_ends(running, ending), key=lambda e: e[:3]):
        if fits and (end > moment or end == unknown):
            break  # jobs that end at the same moment have been counted as well
        moment, fits = end, counts.add(leaving)
    if not fits:
        return None
    nodes = choose(counts.free, job, job.min_nodes, kinds) or {}
    return Reservation(
        job_id=job.job_id,
        starts_in_s=None if moment == unknown else moment,
        nodes=nodes,
        room={m: n - nodes.get(m, 0) * job.accels for m, n in counts.free.items()},
        kinds=kinds.allowed(job),
    )


def victims(free: Mapping[str, int], running: Sequence[RunningJob], job: QueuedJob, kinds: Kinds) -> list[RunningJob]:
    """Return the running jobs of strictly lower priority to preempt for this job: lowest priority and youngest first.

    Return an empty list if jobs that are stopping already free enough, or if preemption would not free enough.
    """
    counts = _Counts(free, job, kinds)
    for leaving in running:
        if leaving.stopping and counts.add(leaving):
            return []  # jobs that are stopping free enough
    chosen = []
    for candidate in sorted(running, key=lambda r: (r.priority, -r.started, r.job_id)):
        if candidate.priority >= job.priority or candidate.keeps or candidate.stopping:
            continue
        if not any(m in counts.free and kinds.may_use(job, m) for m in candidate.slots):
            continue
        chosen.append(candidate)
        if counts.add(candidate):
            return _needed(counts, chosen)
    return []


def could_ever(machines: Sequence[MachineState], job: QueuedJob, kinds: Kinds | None = None) -> bool:
    """Return whether the job would fit on these machines if all were free; `kinds` describes the whole pool."""
    return fits(((m.name, m.slots) for m in machines), job, kinds or Kinds(machines))


def is_brief(job: QueuedJob, until: float, policy: Policy) -> bool:
    """Return whether the job's time limit guarantees that it ends before a reserved start in `until` seconds."""
    return job.limit_s is not None and job.limit_s + policy.grace_of(job) <= until


def _ends(running: Iterable[RunningJob], ending: Mapping[str, float]) -> Iterable[tuple[float, float, str, RunningJob]]:
    for job in running:
        end = ending.get(job.job_id, job.ends_in_s)
        yield float("inf") if end is None else max(0.0, end), job.started, job.job_id, job


class _Counts:
    """Free slots as running jobs end, and how many nodes of one job fit on them."""

    def __init__(self, free: Mapping[str, int], job: QueuedJob, kinds: Kinds):
        self.free, self._job = dict(free), job
        of, allowed, barred = kinds.of, kinds.allowed(job), kinds.barred(job)
        self._group = {m: kinds.group(job, m) for m in free if of.get(m) in allowed and m not in barred}
        """Machine the job may use → its zone and kind (`Kinds.group`)."""
        self._nodes: dict[tuple[str, str], int] = {}
        for machine, group in self._group.items():
            self._nodes[group] = self._nodes.get(group, 0) + free[machine] // job.accels

    def add(self, leaving: RunningJob, sign: int = 1) -> bool:
        """Add (or with `sign` -1 subtract) the slots of a running job; return whether the job fits now."""
        accels = self._job.accels
        for machine, count in leaving.slots.items():
            before = self.free.get(machine)
            if before is None:
                continue  # a machine that accepts no new jobs
            self.free[machine] = after = before + sign * count
            if machine in self._group:
                self._nodes[self._group[machine]] += after // accels - before // accels
        return max(self._nodes.values(), default=0) >= self._job.min_nodes


def _needed(counts: _Counts, chosen: list[RunningJob]) -> list[RunningJob]:
    """Return the chosen jobs without those that need not be preempted after all; spare the highest priority first."""
    needed = []
    for candidate in reversed(chosen):
        if not counts.add(candidate, -1):
            counts.add(candidate)
            needed.append(candidate)
    return needed[::-1]
