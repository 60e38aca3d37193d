"""Order of the queue: by priority, then by each workspace's usage divided by its weight, then by submission.

Every ranked job counts as if it had started, so workspaces alternate through the whole queue. Jobs with a reservation stay
first within their priority. A workspace that has nothing running and whose oldest job has waited for `patience_s` comes
first, regardless of priorities.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from operator import attrgetter

from shoal.server.scheduler.model import QueuedJob, QueueState, Share
from shoal.server.scheduler.share import held_slots

_NO_SHARE = Share()


def ranked(state: QueueState) -> list[QueuedJob]:
    """Return the queued jobs in the order in which they are considered for a start."""
    waiting: dict[int, dict[str, list[QueuedJob]]] = {}
    for job in sorted(state.queue, key=attrgetter("order")):
        waiting.setdefault(job.priority, {}).setdefault(job.workspace, []).append(job)
    debts = _debts(state)
    line = _lifted(state)
    promised = _promised(state, line)
    for job in [*line, *promised]:
        of_priority = waiting[job.priority]
        of_priority[job.workspace] = [other for other in of_priority[job.workspace] if other is not job]
        debts.charge(job)
    for priority in sorted(waiting, reverse=True):
        line += [job for job in promised if job.priority == priority]
        line += _merged(waiting[priority], debts)
    return line


def _promised(state: QueueState, line: list[QueuedJob]) -> list[QueuedJob]:
    """Return the jobs that held a reservation after the last pass, in that order, except those already in `line`."""
    if not state.promised:
        return []
    found = {job.job_id: job for job in state.queue if job.job_id in state.promised}
    return [found[job_id] for job_id in state.promised if job_id in found and found[job_id] not in line]


class _Debts:
    """Slot-seconds used per unit of weight, for each workspace. The workspace with the lowest number goes first."""

    def __init__(self, owed: dict[str, float], per_slot: Mapping[str, float], default: float):
        self.owed, self._per_slot, self._default = owed, per_slot, default

    def charge(self, job: QueuedJob) -> float:
        return self.charge_slots(job.workspace, job.min_nodes * job.accels)

    def charge_slots(self, workspace: str, slots: int) -> float:
        cost = slots * self._per_slot.get(workspace, self._default)
        owed = self.owed[workspace] = self.owed.get(workspace, 0.0) + cost
        return owed


def _debts(state: QueueState) -> _Debts:
    policy, held = state.policy, held_slots(state.running)
    owed = {}
    for workspace in state.shares.keys() | held.keys():
        share = state.shares.get(workspace, _NO_SHARE)
        owed[workspace] = (share.used_s + held[workspace] * policy.commit_s) / share.weight
    return _Debts(owed, {w: policy.commit_s / s.weight for w, s in state.shares.items()}, policy.commit_s)


def _merged(waiting: dict[str, list[QueuedJob]], debts: _Debts) -> list[QueuedJob]:
    if len(waiting) == 1:
        [(workspace, alone)] = waiting.items()
        debts.charge_slots(workspace, sum([job.min_nodes * job.accels for job in alone]))
        return alone
    heap = [(debts.owed.get(w, 0.0), jobs[0].order, w, 0) for w, jobs in waiting.items() if jobs]
    heapq.heapify(heap)
    line = []
    while heap:
        _, _, workspace, at = heap[0]
        jobs = waiting[workspace]
        line.append(jobs[at])
        owed = debts.charge(jobs[at])
        if at + 1 < len(jobs):
            heapq.heapreplace(heap, (owed, jobs[at + 1].order, workspace, at + 1))
        else:
            heapq.heappop(heap)
    return line


def _lifted(state: QueueState) -> list[QueuedJob]:
    """Return the oldest job of every workspace that has nothing running and has waited longer than `patience_s`."""
    latest = state.now - state.policy.patience_s
    served = {job.workspace for job in state.running}
    oldest: dict[str, QueuedJob] = {}
    for job in state.queue:
        if job.since <= latest and job.workspace not in served:
            known = oldest.get(job.workspace)
            if known is None or (job.since, job.job_id) < (known.since, known.job_id):
                oldest[job.workspace] = job
    return sorted(oldest.values(), key=lambda job: (job.since, job.job_id))
