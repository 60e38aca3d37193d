"""Overview of all workspaces of a user: active and ended jobs, problems that need attention, and the use of the pool."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from shoal.core.artifacts import StoreUsageView
from shoal.core.jobs import CapacityView, JobSummary
from shoal.core.schema import Utc, View, utcnow
from shoal.core.states import AttemptState, JobState, NodeState
from shoal.server.artifacts import upkeep
from shoal.server.billing import service as billing
from shoal.server.billing.service import Used
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.jobs import views
from shoal.server.models.checkpoints import Checkpoint
from shoal.server.models.datasets import Dataset
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.workspaces import Member, Workspace
from shoal.server.policy import Principal
from shoal.server.pool import machines

_FRESH = timedelta(days=2)
_STORE_S = 60.0
_DAYS = 30
_stores: dict[Path, tuple[float, StoreUsageView]] = {}


class PlacedJob(View):
    """A job and the workspace it is in."""

    workspace: str
    workspace_id: str
    job: JobSummary
    waiting: str | None = None
    sweep: str | None = None
    """Name of the sweep whose trial it is, if any."""


class Trouble(View):
    """A problem that needs the user's attention."""

    text: str
    job: PlacedJob | None = None


class HomeView(View):
    active: list[PlacedJob]
    recent: list[PlacedJob]
    attention: list[Trouble]
    pool: CapacityView
    trials: dict[str, int] = {}
    """State → number of trials of sweeps that run or wait; they are not in `active`."""


class Occupant(View):
    machine: str
    slots: list[int]
    since: Utc | None
    job: PlacedJob | None
    """None if the job belongs to a workspace that the user is not a member of."""


class PoolView(View):
    pool: CapacityView
    occupants: list[Occupant]


class WorkspaceUsage(View):
    workspace: str
    workspace_id: str
    jobs: int
    slot_seconds: float
    costs: dict[str, float] = {}
    """Currency → sum; empty if slots had no price."""
    datasets_size: int
    checkpoints_size: int


class UsageByPerson(View):
    days: list[tuple[str, float]]
    """(date, slot-seconds) of the last thirty days."""
    costs: dict[str, float] = {}
    """Currency → sum of those days."""
    workspaces: list[WorkspaceUsage]


def home(ctx: Context, principal: Principal) -> HomeView:
    pool = machines.capacity(ctx)
    ended = _mine(principal).where(Job.ended_at.is_not(None)).order_by(Job.ended_at.desc())
    mine = ended.where(Job.kind == "job")
    recent = _jobs(ctx, mine.limit(10))
    failed = mine.where(Job.state == JobState.FAILED.value, Job.ended_at > utcnow() - _FRESH)
    attention = [Trouble(text=p.job.reason or "it failed", job=p) for p in _jobs(ctx, failed.limit(5))]
    attention += [Trouble(text=f"{m.name}: {problem}") for m in pool.machines for problem in m.problems]
    trials, shown = _counted(ctx, principal), active(ctx, principal, 50, kind="job")
    return HomeView(active=shown, recent=recent, attention=attention, pool=pool, trials=trials)


def active(ctx: Context, principal: Principal, limit: int = 1000, *, kind: str | None = None) -> list[PlacedJob]:
    """Return the user's jobs that run or wait, newest first; of one kind, or of all."""
    found = _mine(principal).where(Job.ended_at.is_(None)).order_by(Job.id.desc()).limit(limit)
    return _jobs(ctx, found if kind is None else found.where(Job.kind == kind))


def _counted(ctx: Context, principal: Principal) -> dict[str, int]:
    """Return state → number of the user's trials that run or wait; the home page folds them into one line."""
    query = (
        select(Job.state, func.count())
        .join(Member, Member.workspace_id == Job.workspace_id)
        .where(Member.user_id == principal.user_id, Job.ended_at.is_(None), Job.kind == "trial")
        .group_by(Job.state)
    )
    with ctx.db.read() as session:
        return {row[0]: row[1] for row in session.execute(query)}


def ended_since(ctx: Context, principal: Principal, since: datetime) -> list[PlacedJob]:
    return _jobs(ctx, _mine(principal).where(Job.ended_at > since).order_by(Job.ended_at).limit(100))


def some(ctx: Context, principal: Principal, job_ids: Collection[str]) -> dict[str, PlacedJob]:
    """Return job id → job for those of these jobs that the user may see."""
    return {
        placed.job.id: placed
        for part in in_parts(job_ids)
        for placed in _jobs(ctx, _mine(principal).where(Job.id.in_(part)))
    }


def queue(ctx: Context, principal: Principal) -> list[PlacedJob]:
    """Return the user's queued jobs in queue order, each with the reason why it waits."""
    waiting = _mine(principal).where(Job.state == JobState.QUEUED.value)
    found = _jobs(ctx, waiting.order_by(Job.priority.desc(), Job.id).limit(200))
    places = {job: place for place, job in enumerate(ctx.live.waiting)}
    return sorted(found, key=lambda placed: places.get(placed.job.id, len(places)))


def pool(ctx: Context, principal: Principal) -> PoolView:
    query = (
        select(Node, Attempt, Job, Workspace, Member.user_id)
        .join(Attempt, Attempt.id == Node.attempt_id)
        .join(Job, Job.id == Attempt.job_id)
        .join(Workspace, Workspace.id == Job.workspace_id)
        .outerjoin(Member, (Member.workspace_id == Workspace.id) & (Member.user_id == principal.user_id))
        .where(Attempt.state != AttemptState.ENDED.value)
        .order_by(Node.machine, Job.id, Node.index)
    )
    occupants = []
    with ctx.db.read() as session:
        for node, attempt, job, workspace, mine in session.execute(query):
            if NodeState(node.state).is_terminal:
                continue
            placed = None
            if mine is not None:
                summary = views.job_summary(session, job)
                placed = PlacedJob(workspace=workspace.name, workspace_id=workspace.id, job=summary)
            since = attempt.started_at or attempt.created_at
            occupants.append(Occupant(machine=node.machine, slots=node.slots, since=since, job=placed))
    return PoolView(pool=machines.capacity(ctx), occupants=occupants)


def store(ctx: Context) -> StoreUsageView:
    """Return the usage of the whole store. Cached for a minute, because it reads every manifest."""
    kept = _stores.get(ctx.layout.root)
    if kept is None or time.monotonic() - kept[0] > _STORE_S:
        kept = _stores[ctx.layout.root] = time.monotonic(), upkeep.usage(ctx)
    return kept[1]


def usage(ctx: Context, principal: Principal) -> UsageByPerson:
    mine = select(Member.workspace_id).where(Member.user_id == principal.user_id)
    last_ms = (ctx.usage_clock.now_ms // billing.DAY_MS + 1) * billing.DAY_MS
    first_ms = last_ms - _DAYS * billing.DAY_MS
    with ctx.db.read() as session:
        rows = session.execute(select(Workspace.id, Workspace.name).where(Workspace.id.in_(mine)))
        names = {row.id: row.name for row in rows}
        jobs = session.execute(select(Job.id, Job.workspace_id).where(Job.workspace_id.in_(mine))).all()
        used = billing.used(session, ctx.usage_clock, names, since_ms=first_ms)
        recent = [part for u in used if (part := u.between(first_ms, last_ms))]
        ever = billing.totals(session, ctx.usage_clock, names)
        data = _sizes(session.execute(select(Dataset.workspace_id, Dataset.size).where(Dataset.workspace_id.in_(mine))))
        kept = _sizes(
            session.execute(select(Checkpoint.workspace_id, Checkpoint.size).where(Checkpoint.workspace_id.in_(mine)))
        )
    counts: dict[str, int] = defaultdict(int)
    for _, workspace_id in jobs:
        counts[workspace_id] += 1
    return UsageByPerson(
        days=_by_day(recent, first_ms, last_ms),
        costs=billing.costs(recent),
        workspaces=[
            WorkspaceUsage(
                workspace=name,
                workspace_id=ident,
                jobs=counts[ident],
                slot_seconds=round(ever[ident].slot_s, 1),
                costs=ever[ident].costs,
                datasets_size=data[ident],
                checkpoints_size=kept[ident],
            )
            for ident, name in sorted(names.items(), key=lambda item: -ever[item[0]].slot_s)
        ],
    )


def _by_day(parts: Iterable[Used], first_ms: int, last_ms: int) -> list[tuple[str, float]]:
    """Return (date, slot-seconds) of every day; usage across midnight is split between the days."""
    days = {billing.day_of(at): 0.0 for at in range(first_ms, last_ms, billing.DAY_MS)}
    for part in parts:
        for day, piece in billing.by_day(part):
            if day in days:
                days[day] += piece.slot_s
    return [(day, round(seconds, 1)) for day, seconds in days.items()]


def _sizes(rows: Any) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for workspace_id, size in rows:
        found[workspace_id] += size or 0
    return found


def _mine(principal: Principal) -> Any:
    return (
        select(Job, Workspace)
        .join(Workspace, Workspace.id == Job.workspace_id)
        .join(Member, Member.workspace_id == Workspace.id)
        .where(Member.user_id == principal.user_id)
    )


def _jobs(ctx: Context, query: Any) -> list[PlacedJob]:
    with ctx.db.read() as session:
        return [
            PlacedJob(
                workspace=workspace.name,
                workspace_id=workspace.id,
                job=views.job_summary(session, job),
                waiting=ctx.live.waiting.get(job.id) if job.state == JobState.QUEUED.value else None,
                sweep=job.spec.get("env", {}).get("SHOAL_SWEEP"),
            )
            for job, workspace in session.execute(query)
        ]
