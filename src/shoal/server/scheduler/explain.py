"""Explanation of why a job waits: the reason, the jobs in its way, its likely start, and the cheapest change that starts it.

A change is suggested only if `decide`, given the changed queue, starts the job or preempts others for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from shoal.server.scheduler.decide import decide
from shoal.server.scheduler.free_slots import fits
from shoal.server.scheduler.kinds import ANY, Kinds
from shoal.server.scheduler.model import Decision, Hold, QueuedJob, QueueState, RunningJob
from shoal.server.scheduler.order import ranked
from shoal.server.scheduler.simulate import play

MAX_PRIORITY = 100
_UNKNOWN_S = 3_600.0
_BEHIND = 50
"""Number of jobs behind a job that are simulated too: they may be backfilled before it."""
_MAX_PASSES = 2_000
_MAX_STEPS = 400_000
"""Limit on the jobs considered in one forecast, summed over all simulated passes."""
_MAX_TRIES = 48


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the job's request or of its workspace's quota, and the jobs that would be preempted for it."""

    fields: dict[str, Any] = field(default_factory=dict)
    quota: int | None = None
    preempts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forecast:
    starts_in_s: float | None
    sure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    hold: Hold | None
    """Reason why it waits; None if it is about to start."""
    text: str
    ahead: list[str]
    """Ids of the queued jobs before it, in order."""
    waits_for: list[str]
    """Ids of the running jobs that hold slots it needs."""
    fits_now: bool
    """True if enough slots are free, but using them would delay the head of the queue or exceed the quota."""
    head: str | None
    head_starts_in_s: float | None
    forecast: Forecast
    change: Change | None


def explain(state: QueueState, job_id: str) -> Explanation:
    """Return why a queued job waits and what would start it."""
    job = next(j for j in state.queue if j.job_id == job_id)
    decision, kinds = decide(state), Kinds.seen(state)
    starts = any(started == job_id for started, _ in decision.starts)
    line = [j.job_id for j in ranked(state)]
    ahead = [other for other in line[: line.index(job_id)] if other in decision.waiting]
    head = decision.head_of(kinds.allowed(job))
    return Explanation(
        hold=None if starts else decision.holds.get(job_id, Hold.TURN),
        text=decision.waiting.get(job_id, "it is about to start"),
        ahead=ahead,
        waits_for=_blocking_jobs(state, job, decision, kinds),
        fits_now=fits(((m.name, len(m.free)) for m in state.machines), job, kinds),
        head=head.job_id if head else None,
        head_starts_in_s=head.starts_in_s if head else None,
        forecast=forecast(state, job_id),
        change=None if starts else cheapest_change(state, job, decision),
    )


def forecast(state: QueueState, job_id: str) -> Forecast:
    """Return when a queued job will likely start, from a simulation. `sure` is False if durations had to be guessed."""
    line = ranked(state)
    at = next(i for i, job in enumerate(line) if job.job_id == job_id)
    part = line[: at + 1 + _BEHIND]
    lengths, sure = likely_lengths(replace(state, queue=part))
    passes = max(10, min(_MAX_PASSES, _MAX_STEPS // len(part)))
    played = play(replace(state, queue=part), lengths, until=job_id, max_passes=passes)
    if job_id in played.starts:
        return Forecast(played.starts[job_id] - state.now, sure)
    return Forecast(_by_work_ahead(state, line[: at + 1], lengths) if played.passes >= passes else None, False)


def likely_lengths(state: QueueState) -> tuple[dict[str, float], bool]:
    """Return job id → expected remaining seconds of every job, and whether none of them had to be guessed."""
    known = [j.expected_s or j.limit_s for j in state.queue if j.expected_s or j.limit_s]
    usual = statistics.median([s for s in known if s]) if known else _UNKNOWN_S
    lengths, sure = {}, True
    for running in state.running:
        sure = sure and running.ends_in_s is not None
        age = max(60.0, state.now - running.started)
        # Best guess for a job of unknown duration: it is halfway through.
        lengths[running.job_id] = age if running.ends_in_s is None else max(1.0, running.ends_in_s)
    for job in state.queue:
        likely = job.expected_s or job.limit_s
        sure = sure and likely is not None
        lengths[job.job_id] = likely or usual
    return lengths, sure


def cheapest_change(state: QueueState, job: QueuedJob, decision: Decision) -> Change | None:
    """Return the first change that starts the job, or None.

    Tried in this order: allow all machines, set a time limit, ask for less, raise the quota, raise the priority, allow any
    kind of slot, then several of these together.
    """
    for change in islice(_changes(state, job, decision), _MAX_TRIES):
        found = decide(changed(state, job, change))
        if any(started == job.job_id for started, _ in found.starts):
            return change
        if preempts := tuple(sorted(v for v, winner in found.preempts.items() if winner == job.job_id)):
            return replace(change, preempts=preempts)
    return None


def changed(state: QueueState, job: QueuedJob, change: Change) -> QueueState:
    """Return the state with a change applied to the job."""
    queue = [replace(j, **change.fields) if j.job_id == job.job_id else j for j in state.queue]
    shares = dict(state.shares)
    if change.quota is not None:
        shares[job.workspace] = replace(shares[job.workspace], quota=change.quota)
    return replace(state, queue=queue, shares=shares)


def _changes(state: QueueState, job: QueuedJob, decision: Decision) -> Iterator[Change]:
    if job.exclude:
        yield Change({"exclude": frozenset()})
    kinds = Kinds.seen(state)
    head = decision.head_of(kinds.allowed(job))
    if head is not None and head.job_id != job.job_id and head.starts_in_s is not None and job.expected_s is not None:
        limit = float(int(head.starts_in_s - state.policy.grace_of(job)))
        if job.expected_s <= limit and (job.limit_s is None or job.limit_s > limit):
            yield Change({"limit_s": limit})
    sizes = [{"min_nodes": n} for n in _smaller(job.min_nodes)] + [{"accels": n} for n in _smaller(job.accels)]
    yield from map(Change, sizes)
    quotas = _larger_quotas(state, job) if decision.holds.get(job.job_id) is Hold.QUOTA else []
    for quota in quotas:
        yield Change(quota=quota)
    others = {j.priority for j in state.queue} | {r.priority for r in state.running}
    priorities = [p + 1 for p in sorted(others) if job.priority <= p < MAX_PRIORITY]
    for priority in priorities:
        yield Change({"priority": priority})
    if kinds.are_several_models and job.max_nodes > 1 and not job.mixed_models:
        yield Change({"mixed_models": True})
    any_device: dict[str, Any] = {"device": ANY} if _has_other_kinds(state, job, kinds) else {}
    if any_device:
        yield Change(any_device)
    # No single change is enough: try several at once.
    most = max(quotas, default=None)
    top = {"priority": priorities[-1]} if priorities else {}
    anywhere: dict[str, Any] = {"exclude": frozenset()} if job.exclude else {}
    for size in [{}, *sizes, {"min_nodes": 1, "accels": 1}]:
        yield Change(size | top | anywhere, most)
    if any_device:
        yield Change({"min_nodes": 1, "accels": 1} | top | anywhere | any_device, most)


def _has_other_kinds(state: QueueState, job: QueuedJob, kinds: Kinds) -> bool:
    """Return whether machines that are up have slots of a kind the job may not use."""
    return any(m.slots and kinds.of[m.name] not in kinds.allowed(job) for m in state.machines)


def _larger_quotas(state: QueueState, job: QueuedJob) -> list[int]:
    """Return quotas large enough for this job alone, and for all queued jobs of its workspace."""
    share = state.shares.get(job.workspace)
    if share is None or share.quota is None:
        return []
    held = sum(r.total for r in state.running if r.workspace == job.workspace)
    asked = sum(j.min_slots for j in state.queue if j.workspace == job.workspace)
    return [q for q in dict.fromkeys((held + job.min_slots, held + asked)) if q > share.quota]


def _smaller(number: int) -> list[int]:
    """Return smaller numbers to try, in descending order: all of them up to 9, else by halving."""
    if number <= 9:
        return list(range(number - 1, 0, -1))
    sizes = []
    while number > 1:
        number //= 2
        sizes.append(number)
    return sizes


def _blocking_jobs(state: QueueState, job: QueuedJob, decision: Decision, kinds: Kinds) -> list[str]:
    """Return the running jobs on the machines reserved for the job, else on all it could use; the first to end first."""
    head = decision.head_of(kinds.allowed(job))
    usable = {m.name for m in state.machines if kinds.may_use(job, m.name)}
    mine = head is not None and head.job_id == job.job_id and head.nodes
    machines = set(head.nodes) if head is not None and mine else usable

    def end(running: RunningJob) -> tuple[float, float, str]:
        unknown = running.ends_in_s is None
        return (float("inf") if unknown else running.ends_in_s or 0.0), running.started, running.job_id

    return [r.job_id for r in sorted(state.running, key=end) if machines & r.slots.keys()]


def _by_work_ahead(state: QueueState, line: list[QueuedJob], lengths: dict[str, float]) -> float:
    """Estimate the wait in a queue too long to simulate: slot-seconds of work ahead, divided by the slots of its kinds."""
    kinds = Kinds.seen(state)
    mine = kinds.allowed(line[-1])
    usable = {m.name: m.slots for m in state.machines if kinds.of[m.name] in mine}
    ahead = sum(j.min_slots * lengths[j.job_id] for j in line[:-1] if not mine.isdisjoint(kinds.allowed(j)))
    held = sum(n * lengths[r.job_id] for r in state.running for m, n in r.slots.items() if m in usable)
    return (ahead + held) / max(1, sum(usable.values()))
