"""Growth of running jobs: which of them could restart with more nodes, where no queued job waits for the slots."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.server.scheduler.free_slots import choose
from shoal.server.scheduler.kinds import Kinds, zone
from shoal.server.scheduler.model import Decision, Hold, QueueState, RunningJob


def growth(
    state: QueueState, decision: Decision, free: Mapping[str, int], quotas: Mapping[str, int], kinds: Kinds
) -> dict[str, int]:
    """Return job id → number of nodes it could restart with, each computed for that job alone.

    `free` and `quotas` are the slots left, by machine and by workspace, after `decision`. A job that restarts gives up its
    slots for a moment, so it does not grow while a queued job could take them.
    """
    # A job on a cluster with its own queue (a zone) would have to queue there again, for an unknown time.
    eager = [job for job in state.running if job.may_grow and not any(map(zone, job.slots))]
    if not eager or any(job.stopping for job in state.running) or decision.preempts:
        return {}
    awaited = _awaited(state, decision, kinds)
    held_up = {j.workspace for j in state.queue if decision.holds.get(j.job_id) is Hold.QUOTA}
    line = sorted(eager, key=lambda r: (-r.priority, r.started, r.job_id))
    found = {
        job.job_id: _more(job, free, quotas, kinds)
        for job in line
        if job.workspace not in held_up and job.asked is not None and awaited.isdisjoint(kinds.allowed(job.asked))
    }
    return {job_id: nodes for job_id, nodes in found.items() if nodes}


def _awaited(state: QueueState, decision: Decision, kinds: Kinds) -> set[str]:
    """Return the kinds of slots that queued jobs would take if they became free."""
    found: set[str] = set()
    for job in state.queue:
        waits = job.job_id in decision.waiting
        if waits and decision.holds.get(job.job_id) not in (Hold.QUOTA, Hold.MACHINES):
            found |= kinds.allowed(job)
    return found


def _more(job: RunningJob, free: Mapping[str, int], quotas: Mapping[str, int], kinds: Kinds) -> int:
    """Return the nodes the job could have on the free slots and its own; 0 if that is no more than now."""
    if job.asked is None:
        return 0
    most = job.asked.max_nodes
    if job.workspace in quotas:
        most = min(most, (quotas[job.workspace] + job.total) // job.asked.accels)
    nodes = choose({m: n + job.slots.get(m, 0) for m, n in free.items()}, job.asked, most, kinds)
    count = sum(nodes.values()) if nodes else 0
    return count if count * job.asked.accels > job.total else 0
