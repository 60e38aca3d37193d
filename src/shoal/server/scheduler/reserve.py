"""What is kept for the head of the queue: when and where it will start, and which running jobs must make way for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shoal.server.scheduler.kinds import Kinds, zone
from shoal.server.scheduler.model import MachineState, Policy, QueuedJob, Reservation, RunningJob
from shoal.server.scheduler.room import choose, fits


def reserve(
    free: Mapping[str, int], running: Iterable[RunningJob], job: QueuedJob, ending: Mapping[str, float], kinds: Kinds
) -> Reservation | None:
    """The earliest moment at which the running jobs have left enough. None if even all their slots are too few.

    `ending` overrules when a running job is held to end: those being preempted. One of which nothing is known ends
    after all others, the longest-running first.
    """
    counts, unknown = _Counts(free, job, kinds), float("inf")
    moment, fits = 0.0, False
    for end, _, _, leaving in sorted(_ends(running, ending), key=lambda e: e[:3]):
        if fits and (end > moment or end == unknown):
            break  # those that end at the very moment leave their slots to others
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
    """The running jobs of strictly lower priority to end for this one: the least important and youngest that do."""
    counts = _Counts(free, job, kinds)
    for leaving in running:
        if leaving.stopping and counts.add(leaving):
            return []  # enough is on its way already
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
    """Return whether these machines, all of them free, would hold the job; `kinds` are those of the whole pool."""
    return fits(((m.name, m.slots) for m in machines), job, kinds or Kinds(machines))


def is_brief(job: QueuedJob, until: float, policy: Policy) -> bool:
    """Sure to be over when the head is to start, in `until` seconds."""
    return job.limit_s is not None and job.limit_s + policy.grace_s <= until


def _ends(running: Iterable[RunningJob], ending: Mapping[str, float]) -> Iterable[tuple[float, float, str, RunningJob]]:
    for job in running:
        end = ending.get(job.job_id, job.ends_in_s)
        yield float("inf") if end is None else max(0.0, end), job.started, job.job_id, job


class _Counts:
    """Free slots as jobs leave, and how many nodes of one job they would hold."""

    def __init__(self, free: Mapping[str, int], job: QueuedJob, kinds: Kinds):
        self.free, self._job = dict(free), job
        self._group = {m: (zone(m), kinds.of[m]) for m in free if kinds.may_use(job, m)}
        """Machine the job may use → what a gang does not leave."""
        self._nodes: dict[tuple[str, str], int] = {}
        for machine, group in self._group.items():
            self._nodes[group] = self._nodes.get(group, 0) + free[machine] // job.accels

    def add(self, leaving: RunningJob, sign: int = 1) -> bool:
        """Whether the job has room now."""
        accels = self._job.accels
        for machine, count in leaving.slots.items():
            before = self.free.get(machine)
            if before is None:
                continue  # a machine that takes no new jobs
            self.free[machine] = after = before + sign * count
            if machine in self._group:
                self._nodes[self._group[machine]] += after // accels - before // accels
        return max(self._nodes.values(), default=0) >= self._job.min_nodes


def _needed(counts: _Counts, chosen: list[RunningJob]) -> list[RunningJob]:
    """Without those that turn out to be spared, the most important ones looked at first."""
    needed = []
    for candidate in reversed(chosen):
        if not counts.add(candidate, -1):
            counts.add(candidate)
            needed.append(candidate)
    return needed[::-1]
