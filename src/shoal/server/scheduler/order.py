"""Whose turn it is: by priority, then by what each workspace has used for its weight, then by submission.

Every job ranked counts as if it had started, so workspaces take turns through the whole queue. Those a start was kept
for stay first of their priority. A workspace with nothing running whose oldest job has waited for the policy's patience comes first, whatever the priorities.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from operator import attrgetter

from shoal.server.scheduler.model import QueuedJob, Share, Snapshot
from shoal.server.scheduler.share import held_slots

_NO_SHARE = Share()


def ranked(snapshot: Snapshot) -> list[QueuedJob]:
    lanes: dict[int, dict[str, list[QueuedJob]]] = {}
    for job in sorted(snapshot.queue, key=attrgetter("order")):
        lanes.setdefault(job.priority, {}).setdefault(job.workspace, []).append(job)
    debts = _debts(snapshot)
    line = _lifted(snapshot)
    promised = _promised(snapshot, line)
    for job in [*line, *promised]:
        lane = lanes[job.priority]
        lane[job.workspace] = [other for other in lane[job.workspace] if other is not job]
        debts.charge(job)
    for priority in sorted(lanes, reverse=True):
        line += [job for job in promised if job.priority == priority]
        line += _merged(lanes[priority], debts)
    return line


def _promised(snapshot: Snapshot, line: list[QueuedJob]) -> list[QueuedJob]:
    """Jobs that starts were kept for, the first one first, but for those that are in line already."""
    if not snapshot.promised:
        return []
    found = {job.job_id: job for job in snapshot.queue if job.job_id in snapshot.promised}
    return [found[job_id] for job_id in snapshot.promised if job_id in found and found[job_id] not in line]


class _Debts:
    """Slot-seconds used per unit of weight, by workspace."""

    def __init__(self, owed: dict[str, float], per_slot: Mapping[str, float], default: float):
        self.owed, self._per_slot, self._default = owed, per_slot, default

    def charge(self, job: QueuedJob) -> float:
        return self.charge_slots(job.workspace, job.min_nodes * job.accels)

    def charge_slots(self, workspace: str, slots: int) -> float:
        cost = slots * self._per_slot.get(workspace, self._default)
        owed = self.owed[workspace] = self.owed.get(workspace, 0.0) + cost
        return owed


def _debts(snapshot: Snapshot) -> _Debts:
    policy, held = snapshot.policy, held_slots(snapshot.running)
    owed = {}
    for workspace in snapshot.shares.keys() | held.keys():
        share = snapshot.shares.get(workspace, _NO_SHARE)
        owed[workspace] = (share.used_s + held[workspace] * policy.commit_s) / share.weight
    return _Debts(owed, {w: policy.commit_s / s.weight for w, s in snapshot.shares.items()}, policy.commit_s)


def _merged(lanes: dict[str, list[QueuedJob]], debts: _Debts) -> list[QueuedJob]:
    if len(lanes) == 1:
        [(workspace, alone)] = lanes.items()
        debts.charge_slots(workspace, sum([job.min_nodes * job.accels for job in alone]))
        return alone
    heap = [(debts.owed.get(w, 0.0), jobs[0].order, w, 0) for w, jobs in lanes.items() if jobs]
    heapq.heapify(heap)
    line = []
    while heap:
        _, _, workspace, at = heap[0]
        jobs = lanes[workspace]
        line.append(jobs[at])
        owed = debts.charge(jobs[at])
        if at + 1 < len(jobs):
            heapq.heapreplace(heap, (owed, jobs[at + 1].order, workspace, at + 1))
        else:
            heapq.heappop(heap)
    return line


def _lifted(snapshot: Snapshot) -> list[QueuedJob]:
    """The oldest job of every workspace that is being starved."""
    latest = snapshot.now - snapshot.policy.patience_s
    served = {job.workspace for job in snapshot.running}
    oldest: dict[str, QueuedJob] = {}
    for job in snapshot.queue:
        if job.since <= latest and job.workspace not in served:
            known = oldest.get(job.workspace)
            if known is None or (job.since, job.job_id) < (known.since, known.job_id):
                oldest[job.workspace] = job
    return sorted(oldest.values(), key=lambda job: (job.since, job.job_id))
