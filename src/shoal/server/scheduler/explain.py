"""Why a job waits: the one reason, who is in its way, when it will likely start, and the cheapest change that starts it now.

A change is suggested only after the decision itself, on the queue so changed, has started the job or made others end for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from shoal.server.scheduler.decide import decide
from shoal.server.scheduler.kinds import ANY, Kinds
from shoal.server.scheduler.model import Decision, Hold, QueuedJob, RunningJob, Snapshot
from shoal.server.scheduler.order import ranked
from shoal.server.scheduler.room import fits
from shoal.server.scheduler.simulate import play

MAX_PRIORITY = 100
_UNKNOWN_S = 3_600.0
_BEHIND = 50
"""So many of those behind a job are played too: they may slip in before it."""
_MAX_PASSES = 2_000
_MAX_STEPS = 400_000
"""Jobs looked at in a forecast, over all its passes."""
_MAX_TRIES = 48


@dataclass(frozen=True, slots=True)
class Change:
    """Something of the job, or of its workspace's quota, that would be otherwise."""

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
    """None if it is about to start."""
    text: str
    ahead: list[str]
    """Queued jobs before it, in order."""
    waits_for: list[str]
    """Running jobs that hold what it needs."""
    fits_now: bool
    """The free slots would do, but it would hold up the head of the queue, or its quota is used up."""
    head: str | None
    head_starts_in_s: float | None
    forecast: Forecast
    change: Change | None


def explain(snapshot: Snapshot, job_id: str) -> Explanation:
    job = next(j for j in snapshot.queue if j.job_id == job_id)
    decision, kinds = decide(snapshot), Kinds.seen(snapshot)
    starts = any(started == job_id for started, _ in decision.starts)
    line = [j.job_id for j in ranked(snapshot)]
    ahead = [other for other in line[: line.index(job_id)] if other in decision.waiting]
    head = decision.head_of(kinds.allowed(job))
    return Explanation(
        hold=None if starts else decision.holds.get(job_id, Hold.TURN),
        text=decision.waiting.get(job_id, "it is about to start"),
        ahead=ahead,
        waits_for=_in_its_way(snapshot, job, decision, kinds),
        fits_now=fits(((m.name, len(m.free)) for m in snapshot.machines), job, kinds),
        head=head.job_id if head else None,
        head_starts_in_s=head.starts_in_s if head else None,
        forecast=forecast(snapshot, job_id),
        change=None if starts else cheapest_change(snapshot, job, decision),
    )


def forecast(snapshot: Snapshot, job_id: str) -> Forecast:
    """When a queued job will likely start, by playing the queue forward. Not sure where lengths had to be guessed."""
    line = ranked(snapshot)
    at = next(i for i, job in enumerate(line) if job.job_id == job_id)
    part = line[: at + 1 + _BEHIND]
    lengths, sure = likely_lengths(replace(snapshot, queue=part))
    passes = max(10, min(_MAX_PASSES, _MAX_STEPS // len(part)))
    played = play(replace(snapshot, queue=part), lengths, until=job_id, max_passes=passes)
    if job_id in played.starts:
        return Forecast(played.starts[job_id] - snapshot.now, sure)
    return Forecast(_by_work_ahead(snapshot, line[: at + 1], lengths) if played.passes >= passes else None, False)


def likely_lengths(snapshot: Snapshot) -> tuple[dict[str, float], bool]:
    """Of all jobs, from now on; and whether each of them is known."""
    known = [j.expected_s or j.limit_s for j in snapshot.queue if j.expected_s or j.limit_s]
    usual = statistics.median([s for s in known if s]) if known else _UNKNOWN_S
    lengths, sure = {}, True
    for running in snapshot.running:
        sure = sure and running.ends_in_s is not None
        age = max(60.0, snapshot.now - running.started)
        # Of one that nobody knows anything about, half its life is over, as far as anyone can tell.
        lengths[running.job_id] = age if running.ends_in_s is None else max(1.0, running.ends_in_s)
    for job in snapshot.queue:
        likely = job.expected_s or job.limit_s
        sure = sure and likely is not None
        lengths[job.job_id] = likely or usual
    return lengths, sure


def cheapest_change(snapshot: Snapshot, job: QueuedJob, decision: Decision) -> Change | None:
    """The first that works of: run on any machine, promise to be brief, be smaller, have a larger quota, be more
    important, run on any kind of slot."""
    for change in islice(_changes(snapshot, job, decision), _MAX_TRIES):
        found = decide(changed(snapshot, job, change))
        if any(started == job.job_id for started, _ in found.starts):
            return change
        if preempts := tuple(sorted(v for v, winner in found.preempts.items() if winner == job.job_id)):
            return replace(change, preempts=preempts)
    return None


def changed(snapshot: Snapshot, job: QueuedJob, change: Change) -> Snapshot:
    queue = [replace(j, **change.fields) if j.job_id == job.job_id else j for j in snapshot.queue]
    shares = dict(snapshot.shares)
    if change.quota is not None:
        shares[job.workspace] = replace(shares[job.workspace], quota=change.quota)
    return replace(snapshot, queue=queue, shares=shares)


def _changes(snapshot: Snapshot, job: QueuedJob, decision: Decision) -> Iterator[Change]:
    if job.exclude:
        yield Change({"exclude": frozenset()})
    kinds = Kinds.seen(snapshot)
    head = decision.head_of(kinds.allowed(job))
    if head is not None and head.job_id != job.job_id and head.starts_in_s is not None and job.expected_s is not None:
        limit = float(int(head.starts_in_s - snapshot.policy.grace_s))
        if job.expected_s <= limit and (job.limit_s is None or job.limit_s > limit):
            yield Change({"limit_s": limit})
    sizes = [{"min_nodes": n} for n in _smaller(job.min_nodes)] + [{"accels": n} for n in _smaller(job.accels)]
    yield from map(Change, sizes)
    quotas = _larger_quotas(snapshot, job) if decision.holds.get(job.job_id) is Hold.QUOTA else []
    for quota in quotas:
        yield Change(quota=quota)
    others = {j.priority for j in snapshot.queue} | {r.priority for r in snapshot.running}
    priorities = [p + 1 for p in sorted(others) if job.priority <= p < MAX_PRIORITY]
    for priority in priorities:
        yield Change({"priority": priority})
    any_device: dict[str, Any] = {"device": ANY} if _has_other_kinds(snapshot, job, kinds) else {}
    if any_device:
        yield Change(any_device)
    # No single one will do: several at once.
    most = max(quotas, default=None)
    top = {"priority": priorities[-1]} if priorities else {}
    anywhere: dict[str, Any] = {"exclude": frozenset()} if job.exclude else {}
    for size in [{}, *sizes, {"min_nodes": 1, "accels": 1}]:
        yield Change(size | top | anywhere, most)
    if any_device:
        yield Change({"min_nodes": 1, "accels": 1} | top | anywhere | any_device, most)


def _has_other_kinds(snapshot: Snapshot, job: QueuedJob, kinds: Kinds) -> bool:
    """Return whether machines that are up have slots of a kind the job may not use."""
    return any(m.slots and m.kind not in kinds.allowed(job) for m in snapshot.machines)


def _larger_quotas(snapshot: Snapshot, job: QueuedJob) -> list[int]:
    """Enough for this job alone, and for all its workspace waits for."""
    share = snapshot.shares.get(job.workspace)
    if share is None or share.quota is None:
        return []
    held = sum(r.total for r in snapshot.running if r.workspace == job.workspace)
    asked = sum(j.min_slots for j in snapshot.queue if j.workspace == job.workspace)
    return [q for q in dict.fromkeys((held + job.min_slots, held + asked)) if q > share.quota]


def _smaller(number: int) -> list[int]:
    """Down from it: each one if they are few, else in halves."""
    if number <= 9:
        return list(range(number - 1, 0, -1))
    sizes = []
    while number > 1:
        number //= 2
        sizes.append(number)
    return sizes


def _in_its_way(snapshot: Snapshot, job: QueuedJob, decision: Decision, kinds: Kinds) -> list[str]:
    """Running jobs on the machines kept for it, or else on all it could use; the first to end first."""
    head = decision.head_of(kinds.allowed(job))
    usable = {m.name for m in snapshot.machines if kinds.may_use(job, m.name)}
    mine = head is not None and head.job_id == job.job_id and head.nodes
    machines = set(head.nodes) if head is not None and mine else usable

    def end(running: RunningJob) -> tuple[float, float, str]:
        unknown = running.ends_in_s is None
        return (float("inf") if unknown else running.ends_in_s or 0.0), running.started, running.job_id

    return [r.job_id for r in sorted(snapshot.running, key=end) if machines & r.slots.keys()]


def _by_work_ahead(snapshot: Snapshot, line: list[QueuedJob], lengths: dict[str, float]) -> float:
    """Estimate for a queue too long to simulate: all the work before it on slots of its kinds, shared by all of these."""
    kinds = Kinds.seen(snapshot)
    mine = kinds.allowed(line[-1])
    usable = {m.name: m.slots for m in snapshot.machines if m.kind in mine}
    ahead = sum(j.min_slots * lengths[j.job_id] for j in line[:-1] if not mine.isdisjoint(kinds.allowed(j)))
    held = sum(n * lengths[r.job_id] for r in snapshot.running for m, n in r.slots.items() if m in usable)
    return (ahead + held) / max(1, sum(usable.values()))
