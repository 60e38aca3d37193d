"""Simulation of the queue: the scheduler's own decision, repeated whenever a job ends or arrives.

Used to estimate start times, to check suggestions, and to measure the decision on made-up pools.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.server.scheduler.decide import decide
from shoal.server.scheduler.model import (
    Decision,
    Placement,
    QueuedJob,
    QueueState,
    RunningJob,
    Share,
)
from shoal.server.scheduler.share import aged, held_slots

OVERDUE = 0.05
"""Minimum remaining time of an overdue job, as a fraction of its run time. Otherwise it is assumed to take as long again as
it is late."""


def left_s(expected_end: float, started: float, now: float) -> float:
    """Return the seconds until the expected end; for an overdue job, an estimate that grows with its delay."""
    late = now - expected_end
    return -late if late < 0 else max(late, OVERDUE * (now - started))


@dataclass(slots=True)
class Played:
    """Result of a simulation."""

    starts: dict[str, float] = field(default_factory=dict)
    """Job id → time of its first start."""
    ends: dict[str, float] = field(default_factory=dict)
    preempted: Counter[str] = field(default_factory=Counter)
    passes: int = 0


@dataclass(slots=True)
class _Live:
    job: RunningJob
    slots: dict[str, list[int]]
    ends_at: float
    expected_end: float | None
    left_s: float = 0.0
    """Seconds it still had to run when it was preempted."""


Watch = Callable[[QueueState, Decision], None]


def play(
    state: QueueState,
    lengths: Mapping[str, float],
    *,
    arrivals: Sequence[QueuedJob] = (),
    until: str | None = None,
    max_passes: int = 1_000_000,
    watch: Watch | None = None,
) -> Played:
    """Simulate until every job has ended, or until the job `until` has started.

    `lengths` is the true duration of each job from now on; the decision sees only the expected ones. `arrivals` join the
    queue at their time of submission (`since`). `watch` is called with each state and its decision.
    """
    pool = _Pool(state, lengths)
    pool.arrivals = sorted(arrivals, key=lambda job: (job.since, job.job_id), reverse=True)
    while pool.played.passes < max_passes:
        view = pool.state()
        decision = decide(view)
        pool.played.passes += 1
        if watch is not None:
            watch(view, decision)
        pool.apply(decision)
        if (until is not None and until in pool.played.starts) or not pool.advance():
            break
    return pool.played


class _Pool:
    def __init__(self, first: QueueState, lengths: Mapping[str, float]):
        self.first, self.lengths, self.now = first, dict(lengths), first.now
        self.queue = {job.job_id: job for job in first.queue}
        self.used = {m.name: set(m.used) for m in first.machines}
        self.shares = dict(first.shares)
        self.live: dict[str, _Live] = {}
        self.heap: list[tuple[float, str]] = []
        self.arrivals: list[QueuedJob] = []
        self.played, self.promised = Played(), first.promised
        owned = {m: sorted(slots) for m, slots in self.used.items()}
        for job in first.running:
            mine = {
                m: [owned[m].pop() for _ in range(min(n, len(owned[m])))] for m, n in job.slots.items() if m in owned
            }
            expected = None if job.ends_in_s is None else self.now + job.ends_in_s
            self._run(_Live(job, mine, self.now + self.lengths[job.job_id], expected))

    def state(self) -> QueueState:
        return replace(
            self.first,
            now=self.now,
            machines=[replace(m, used=frozenset(self.used[m.name])) for m in self.first.machines],
            queue=list(self.queue.values()),
            running=[self._seen(live) for live in self.live.values()],
            shares=self.shares,
            promised=self.promised,
        )

    def apply(self, decision: Decision) -> None:
        self.promised = tuple(kept.job_id for kept in decision.reserved)
        for job_id, gang in decision.starts:
            self._start(self.queue.pop(job_id), gang)
        for victim in decision.preempts:
            live = self.live[victim]
            ends_at = self.now + self.first.policy.grace_of(live.job.asked)
            if ends_at < live.ends_at:
                live.left_s = live.ends_at - ends_at
                live.ends_at = ends_at
                heapq.heappush(self.heap, (ends_at, victim))
            live.job = replace(live.job, stopping=True)

    def advance(self) -> bool:
        """Advance to the next time at which anything changes; return False if nothing will."""
        while self.heap and self._is_stale(*self.heap[0]):
            heapq.heappop(self.heap)
        moments = [self.heap[0][0]] if self.heap else []
        if self.arrivals:
            moments.append(self.arrivals[-1].since)
        moments += [j.avoided.until for j in self.queue.values() if j.avoided and j.avoided.until > self.now]
        if not moments:
            return False
        self._age(min(moments))
        while self.heap and self.heap[0][0] <= self.now:
            ends_at, job_id = heapq.heappop(self.heap)
            if not self._is_stale(ends_at, job_id):
                self._end(self.live.pop(job_id))
        while self.arrivals and self.arrivals[-1].since <= self.now:
            job = self.arrivals.pop()
            self.queue[job.job_id] = job
        return True

    def _is_stale(self, ends_at: float, job_id: str) -> bool:
        return job_id not in self.live or self.live[job_id].ends_at != ends_at

    def _age(self, now: float) -> None:
        held = held_slots(live.job for live in self.live.values())
        used_s = {w: share.used_s for w, share in self.shares.items()}
        for workspace, used in aged(used_s, held, self.now, now, self.first.policy.half_life_s).items():
            self.shares[workspace] = replace(self.shares.get(workspace, Share()), used_s=used)
        self.now = now

    def _start(self, job: QueuedJob, gang: Sequence[Placement]) -> None:
        slots: dict[str, list[int]] = {}
        for node in gang:
            slots.setdefault(node.machine, []).extend(node.slots)
        for machine, taken in slots.items():
            self.used[machine].update(taken)
        likely = [s for s in (job.expected_s, job.limit_s) if s is not None]
        running = RunningJob(
            job_id=job.job_id,
            priority=job.priority,
            slots={m: len(s) for m, s in slots.items()},
            workspace=job.workspace,
            started=self.now,
            keeps=self.now - job.since >= self.first.policy.patience_s,
            asked=job,
        )
        self.played.starts.setdefault(job.job_id, self.now)
        length = self.lengths[job.job_id]
        if job.limit_s is not None:
            length = min(length, job.limit_s)
        self._run(_Live(running, slots, self.now + length, self.now + min(likely) if likely else None))

    def _run(self, live: _Live) -> None:
        self.live[live.job.job_id] = live
        heapq.heappush(self.heap, (live.ends_at, live.job.job_id))

    def _end(self, live: _Live) -> None:
        job_id = live.job.job_id
        for machine, slots in live.slots.items():
            self.used[machine].difference_update(slots)
        if live.left_s > 0 and live.job.asked is not None:
            self.lengths[job_id] = live.left_s
            self.played.preempted[job_id] += 1
            ran = self.now - live.job.started
            asked = live.job.asked
            self.queue[job_id] = replace(
                asked, limit_s=_less(asked.limit_s, ran), expected_s=_less(asked.expected_s, ran)
            )
        else:
            self.played.ends[job_id] = self.now

    def _seen(self, live: _Live) -> RunningJob:
        if live.job.stopping:
            return replace(live.job, ends_in_s=max(0.0, live.ends_at - self.now))
        if live.expected_end is None:
            return live.job
        return replace(live.job, ends_in_s=left_s(live.expected_end, live.job.started, self.now))


def _less(length: float | None, ran: float) -> float | None:
    return None if length is None else max(1.0, length - ran)
