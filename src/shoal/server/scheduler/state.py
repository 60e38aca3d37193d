"""The scheduler's view of the database and the machines, as one `QueueState`.

Queued jobs, durations of past jobs and the usage of workspaces are cached, so that a pass over thousands of jobs is cheap.

Why this is safe: the scheduler's thread and request threads share one `QueueMemory`. `read` holds `_lock` while it reads
and updates every cache; `avoided` and `forget` take the same lock. `promised` is written by the scheduler's thread only and
replaced as a whole. `_shunned` is used without the lock: each access is one dict operation (or a copy made by `list`),
and a missed update only changes a preference for one pass. Nothing here is stored: after a restart of the server all of it
is read from the database again, except the shunned machines and the promised jobs, which are forgotten.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from shoal.core.schema import utcnow
from shoal.core.settings import ServerSettings
from shoal.core.states import AttemptState, JobState, NodeState
from shoal.engines.base import Machine
from shoal.server.db import in_parts
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.leases import Lease
from shoal.server.models.workspaces import Workspace
from shoal.server.scheduler import after
from shoal.server.scheduler.avoid import Ended, avoided
from shoal.server.scheduler.machine_parts import Parts, away, split_machines
from shoal.server.scheduler.model import Avoided, Policy, QueuedJob, QueueState, RunningJob, Share
from shoal.server.scheduler.share import aged, used_between
from shoal.server.scheduler.simulate import left_s

_HISTORY_JOBS = 200
_HISTORY_S = 60.0
_PAST_HALF_LIVES = 10
_SHUN_LEAST_S, _SHUN_MOST_S = 60.0, 3_600.0
Held = tuple[str, str, list[int]]
"""Attempt, machine, and the slots that a node holds there."""
_COLUMNS = (Job.id, Job.workspace_id, Job.priority, Job.spec, Job.created_at, Job.started_at, Job.attempts)


@dataclass(slots=True)
class QueueMemory:
    """Caches behind the scheduler's view. One per server, shared by the scheduler and by requests about the queue."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: dict[str, tuple[tuple[int, int], QueuedJob]] = field(default_factory=dict)
    """Job id → (priority, attempts) at the time it was read, and the job. Read again when either has changed."""
    _batches: dict[tuple[str, str], float] = field(default_factory=dict)
    _history: dict[str, tuple[float, dict[str, float]]] = field(default_factory=dict)
    promised: tuple[str, ...] = ()
    """Jobs that held a reservation after the last pass."""
    _used: dict[str, float] = field(default_factory=dict)
    """Workspace → slot-seconds used until `_used_at`, discounted by age."""
    _used_at: float = 0.0
    _shunned: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Machine → monotonic time until which it is shunned, and for how many seconds in total."""

    def shun(self, machine: str) -> None:
        """Prefer other machines for a while, longer each time: a node there went silent though its engine sees no fault."""
        length = min(2 * self._shunned.get(machine, (0.0, _SHUN_LEAST_S / 2))[1], _SHUN_MOST_S)
        self._shunned[machine] = (time.monotonic() + length, length)

    @property
    def shunned(self) -> list[str]:
        """Machines that are shunned now."""
        return [machine for machine, (until, _) in list(self._shunned.items()) if until > time.monotonic()]

    def trust(self, machine: str) -> None:
        """Stop shunning a machine: an agent on it has joined its gang."""
        self._shunned.pop(machine, None)

    def _trusted(self, machines: Iterable[Machine]) -> tuple[list[Machine], list[tuple[Machine, str]]]:
        """Return the machines to use and the others, each with its state. Shunned ones are used only if no others are up."""
        found, now = list(machines), time.monotonic()
        for lost in [m for m in found if m.state != "up"]:
            self.trust(lost.name)  # the engine has noticed the fault itself, so trust its next "up"
        up = [m for m in found if m.state == "up" and not m.refuses]
        trusted = [m for m in up if self._shunned.get(m.name, (0.0, 0.0))[0] < now] or up
        names = {m.name for m in trusted}
        away = [
            (m, (m.refuses or "not answering") if m.state == "up" else m.state) for m in found if m.name not in names
        ]
        return trusted, away

    def avoided(self, job_id: str) -> frozenset[str]:
        """Return the machines that the next attempt of this job should avoid, as of the last read of the queue."""
        with self._lock:
            known = self._known.get(job_id)
        return known[1].avoided.machines if known and known[1].avoided else frozenset()

    def forget(self, job_id: str) -> None:
        """Drop the cached request of a job that was changed while it waited."""
        with self._lock:
            self._known.pop(job_id, None)

    def read(self, session: Session, machines: Iterable[Machine], settings: ServerSettings) -> QueueState:
        """Return the current state for a decision.

        Call it before other reads of the session. A session that has read before sees the database as it was then, perhaps
        before a change that `forget` has told of already; what it reads is used once and not cached.
        """
        policy = policy_of(settings)
        with self._lock:
            is_fresh = not session.in_transaction()
            now = utcnow().timestamp()
            trusted, gone = self._trusted(machines)
            slots: list[Held] = [(attempt, machine, numbers) for attempt, machine, numbers in session.execute(_HELD)]
            parts = split_machines(trusted, _used(slots))
            running = self._running(session, now, policy, slots, parts)
            self._account(session, now, policy)
            queue = self._queue(session, now, cache=is_fresh)
            held = after.held(session, {job.job_id: job.after for job in queue if job.after})
            queue = [job for job in queue if job.job_id not in held.waiting and job.job_id not in held.hopeless]
            return QueueState(
                now=now,
                machines=parts.states,
                away=[*parts.broken, *(part for m, state in gone for part in away(m, state))],
                queue=[parts.expanded(job) for job in queue] if parts.split else queue,
                running=running,
                shares=self._shares(session),
                policy=policy,
                promised=self.promised,
                held=held.waiting,
                hopeless=held.hopeless,
            )

    def _queue(self, session: Session, now: float, *, cache: bool) -> list[QueuedJob]:
        waiting = select(Job.id, Job.priority, Job.attempts).where(
            Job.state == JobState.QUEUED.value, Job.ended_at.is_(None)
        )
        queue, new, known = [], [], self._known
        for job_id, priority, attempts in session.execute(waiting):
            seen = known.get(job_id)
            if seen is not None and seen[0] == (priority, attempts):
                queue.append(seen[1])
            else:
                new.append(job_id)
        for row in _in_parts(session, new):
            ran = ran_s(session, row.id, row.started_at)
            job = self._queued(session, row, ran, now)
            if cache:
                known[job.job_id] = ((row.priority, row.attempts), job)
            queue.append(job)
        if len(known) > 2 * len(queue) + 1000:
            self._known = {job.job_id: known[job.job_id] for job in queue if job.job_id in known}
        return queue

    def _queued(self, session: Session, row: Row[Any], ran: float, now: float) -> QueuedJob:
        spec, since = row.spec, row.created_at.timestamp()
        limit, batch = spec.get("time_limit_s"), spec.get("batch")
        expected = self._expected(session, row.workspace_id, spec, now)
        order: tuple[float, str] | tuple[float, str, float, str] = (since, row.id)
        if batch:
            first = self._batches.setdefault((row.workspace_id, batch), since)
            order = (first, batch, -(expected or 0.0), row.id)
        return QueuedJob(
            job_id=row.id,
            priority=row.priority,
            order=order,
            min_nodes=spec["min_nodes"],
            max_nodes=spec["max_nodes"],
            accels=spec["accels"],
            workspace=row.workspace_id,
            since=since,
            limit_s=None if limit is None else max(1.0, limit - ran),
            expected_s=None if expected is None else max(1.0, expected - ran),
            exclude=frozenset(spec.get("exclude", ())),
            prefer=frozenset(spec.get("prefer", ())),
            avoided=_avoided(session, row.id) if row.attempts else None,
            device=spec.get("device", "auto"),
            gpu=spec.get("gpu") or "",
            gpu_memory=int((spec.get("gpu_memory_gb") or 0) * 1e9),
            mixed_models=bool(spec.get("mixed_models")),
            labels=frozenset(f"{key}={value}" for key, value in (spec.get("labels") or {}).items()),
            grace_s=spec.get("grace_s"),
            after=tuple(spec.get("after") or ()),
        )

    def _expected(self, session: Session, workspace: str, spec: dict[str, Any], now: float) -> float | None:
        """Return the duration given at submission, else the median of past jobs with the same script in the workspace."""
        if given := spec.get("expected_s"):
            return float(given)
        read_at, found = self._history.get(workspace, (float("-inf"), {}))
        if now - read_at > _HISTORY_S:
            found = _median_lengths(session, workspace)
            self._history[workspace] = (now, found)
        likely = found.get(spec["entry"][0])
        limit = spec.get("time_limit_s")
        return likely if limit is None or likely is None else min(likely, float(limit))

    def _running(
        self, session: Session, now: float, policy: Policy, held: Sequence[Held], parts: Parts
    ) -> list[RunningJob]:
        slots: dict[str, dict[str, int]] = {}
        unusable: dict[str, int] = {}
        for attempt_id, machine, numbers in held:
            mine, counted = slots.setdefault(attempt_id, {}), parts.counted(machine, numbers)
            for part, count in counted.items():
                mine[part] = mine.get(part, 0) + count
            unusable[attempt_id] = unusable.get(attempt_id, 0) + len(numbers) - sum(counted.values())
        running, leases = [], set(session.scalars(select(Lease.job_id).where(Lease.ended_at.is_(None))))
        for row in session.execute(_OPEN):
            started = row.attempt_created_at.timestamp()
            ran = ran_s(session, row.id, row.started_at) if row.attempts > 1 else 0.0
            if row.attempt_started_at is not None:
                ran += max(0.0, now - row.attempt_started_at.timestamp())
            asked = parts.expanded(self._queued(session, row, ran, now))
            likely = _likely_end(row, asked, self._expected(session, row.workspace_id, row.spec, now), ran)
            running.append(
                RunningJob(
                    job_id=row.id,
                    priority=row.priority,
                    slots=slots.get(row.attempt_id, {}),
                    workspace=row.workspace_id,
                    started=started,
                    ends_in_s=min(likely, default=None),
                    stopping=row.stop_requested_at is not None,
                    keeps=started - asked.since >= policy.patience_s or row.id in leases,
                    asked=asked,
                    may_grow=bool(row.spec.get("grow")) and _has_run(row, now) >= policy.grow_s,
                    unusable=unusable.get(row.attempt_id, 0),
                )
            )
        return running

    def _account(self, session: Session, now: float, policy: Policy) -> None:
        if self._used_at == 0.0:
            self._used_at = now - _PAST_HALF_LIVES * policy.half_life_s
        used = aged(self._used, {}, self._used_at, now, policy.half_life_s)
        for workspace, slots, start, end in _uses(session, self._used_at, now):
            used[workspace] = used.get(workspace, 0.0) + used_between(slots, start, end, now, policy.half_life_s)
        self._used, self._used_at = used, now

    def _shares(self, session: Session) -> dict[str, Share]:
        used = self._used
        shares = {workspace: Share(used_s=used_s) for workspace, used_s in used.items()}
        special = select(Workspace.id, Workspace.share, Workspace.slot_quota, Workspace.model_quotas).where(
            Workspace.slot_quota.is_not(None) | (Workspace.share != 1.0) | (Workspace.model_quotas != {})
        )
        for workspace, weight, quota, models in session.execute(special):
            shares[workspace] = Share(weight=weight, quota=quota, models=models, used_s=used.get(workspace, 0.0))
        return shares


def _avoided(session: Session, job_id: str) -> Avoided | None:
    failed = (
        select(Attempt.number, Node.machine, Node.slots, Node.reason, Node.ended_at, Node.index, Node.failed_rank)
        .join(Attempt, Attempt.id == Node.attempt_id)
        .where(Attempt.job_id == job_id, Node.blamed.is_(True), Node.reason.is_not(None), Node.ended_at.is_not(None))
    )
    rows = session.execute(failed).all()
    return avoided(
        Ended(number, machine, slots, reason or "", at.timestamp(), index, rank)
        for number, machine, slots, reason, at, index, rank in rows
        if at
    )


def policy_of(settings: ServerSettings) -> Policy:
    """Return the queue's policy from the server's settings."""
    return Policy(
        half_life_s=settings.queue_half_life_h * 3600,
        patience_s=settings.queue_patience_h * 3600,
        preempt=settings.queue_preempt,
        grace_s=settings.stop_grace_s,
        grow_s=settings.queue_grow_s,
    )


_HELD = (
    select(Node.attempt_id, Node.machine, Node.slots)
    .join(Attempt, Attempt.id == Node.attempt_id)
    .where(Attempt.state != AttemptState.ENDED.value)
    .where(Node.state.not_in([s.value for s in NodeState if s.is_terminal]))
)
_OPEN = (
    select(
        *_COLUMNS,
        Job.progress,
        Job.stop_requested_at,
        Attempt.id.label("attempt_id"),
        Attempt.created_at.label("attempt_created_at"),
        Attempt.started_at.label("attempt_started_at"),
    )
    .join(Attempt, Attempt.job_id == Job.id)
    .where(Attempt.state != AttemptState.ENDED.value)
    .order_by(Attempt.id)
)


def _used(held: Sequence[Held]) -> dict[str, set[int]]:
    """Return machine → slots that are taken."""
    used: dict[str, set[int]] = {}
    for _, name, slots in held:
        used.setdefault(name, set()).update(slots)
    return used


def _has_run(row: Row[Any], now: float) -> float:
    """Return how many seconds the current attempt has run; -1 before its start."""
    return now - row.attempt_started_at.timestamp() if row.attempt_started_at is not None else -1.0


def _likely_end(row: Row[Any], asked: QueuedJob, expected_s: float | None, ran: float) -> list[float]:
    """Return estimates of the seconds until it ends: from its time limit, and from its progress or its expected duration."""
    ends = [] if asked.limit_s is None else [asked.limit_s]
    progress = row.progress or {}
    eta = progress.get("eta_high_s") or progress.get("eta_s")
    if row.attempt_started_at is not None and eta is not None:
        ends.append(float(eta))
    elif expected_s is not None:
        ends.append(left_s(expected_s, 0.0, ran))
    return ends


def ran_s(session: Session, job_id: str, since: datetime | None) -> float:
    """Return the run time of all ended attempts of a job since `since`: its first start, or the last resume by a user."""
    if since is None:
        return 0.0
    spans = select(Attempt.started_at, Attempt.ended_at).where(Attempt.job_id == job_id, Attempt.started_at >= since)
    return sum((end - start).total_seconds() for start, end in session.execute(spans) if start and end)


def _median_lengths(session: Session, workspace: str) -> dict[str, float]:
    """Return script → median duration of the last jobs that ran it successfully."""
    done = (
        select(Job.spec, Job.started_at, Job.ended_at)
        .where(Job.workspace_id == workspace, Job.state == JobState.SUCCEEDED.value, Job.started_at.is_not(None))
        .order_by(Job.id.desc())
        .limit(_HISTORY_JOBS)
    )
    lengths: dict[str, list[float]] = {}
    for spec, started, ended in session.execute(done):
        if started is not None and ended is not None:
            lengths.setdefault(spec["entry"][0], []).append((ended - started).total_seconds())
    return {script: max(1.0, statistics.median(found)) for script, found in lengths.items()}


def _uses(session: Session, since: float, now: float) -> Iterator[tuple[str, int, float, float]]:
    """Yield (workspace, slots, start, end) of all nodes that held slots between two points in time."""
    moment = datetime.fromtimestamp(since, UTC)
    used = (
        select(Job.workspace_id, Attempt.created_at, Attempt.ended_at, Node.slots)
        .join(Attempt, Attempt.job_id == Job.id)
        .join(Node, Node.attempt_id == Attempt.id)
    )
    # Two queries, because each can use an index; a single one with OR could use neither.
    for which in (Attempt.ended_at > moment, Attempt.state != AttemptState.ENDED.value):
        for workspace, start, end, slots in session.execute(used.where(which)):
            yield workspace, len(slots), max(since, start.timestamp()), end.timestamp() if end is not None else now


def _in_parts(session: Session, job_ids: list[str]) -> Iterable[Row[Any]]:
    for ids in in_parts(job_ids):
        yield from session.execute(select(*_COLUMNS).where(Job.id.in_(ids)))
