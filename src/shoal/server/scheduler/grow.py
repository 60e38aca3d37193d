"""Which running jobs could start again with more nodes: only where nobody waits for the slots, and each on its own."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.server.scheduler.kinds import Kinds, zone
from shoal.server.scheduler.model import Decision, Hold, RunningJob, Snapshot
from shoal.server.scheduler.room import choose


def growth(
    snapshot: Snapshot, decision: Decision, free: Mapping[str, int], quotas: Mapping[str, int], kinds: Kinds
) -> dict[str, int]:
    """Job id → its nodes then. `free` and `quotas` are the slots left by machine and workspace once `decision` is done.

    A job that is told to save and wait gives its slots up for a moment: whoever is in the queue could take them.
    """
    # One that gives up its place on a cluster with a queue of its own cannot know when it will have another.
    eager = [job for job in snapshot.running if job.may_grow and not any(map(zone, job.slots))]
    if not eager or any(job.stopping for job in snapshot.running) or decision.preempts:
        return {}
    awaited = _awaited(snapshot, decision, kinds)
    held_up = {j.workspace for j in snapshot.queue if decision.holds.get(j.job_id) is Hold.QUOTA}
    line = sorted(eager, key=lambda r: (-r.priority, r.started, r.job_id))
    found = {
        job.job_id: _more(job, free, quotas, kinds)
        for job in line
        if job.workspace not in held_up and job.asked is not None and awaited.isdisjoint(kinds.allowed(job.asked))
    }
    return {job_id: nodes for job_id, nodes in found.items() if nodes}


def _awaited(snapshot: Snapshot, decision: Decision, kinds: Kinds) -> set[str]:
    """Kinds of slots that jobs in the queue could take if they came free."""
    found: set[str] = set()
    for job in snapshot.queue:
        waits = job.job_id in decision.waiting
        if waits and decision.holds.get(job.job_id) not in (Hold.QUOTA, Hold.MACHINES):
            found |= kinds.allowed(job)
    return found


def _more(job: RunningJob, free: Mapping[str, int], quotas: Mapping[str, int], kinds: Kinds) -> int:
    """The nodes it could have on what is free and what it holds itself; 0 if they are no more than it has."""
    if job.asked is None:
        return 0
    most = job.asked.max_nodes
    if job.workspace in quotas:
        most = min(most, (quotas[job.workspace] + job.total) // job.asked.accels)
    nodes = choose({m: n + job.slots.get(m, 0) for m, n in free.items()}, job.asked, most, kinds)
    count = sum(nodes.values()) if nodes else 0
    return count if count * job.asked.accels > job.total else 0
