"""What a person sees across their workspaces: what runs, what ended, what needs them, and what the pool is busy with."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import select

from shoal.core.artifacts import UsageView
from shoal.core.jobs import CapacityView, JobSummary
from shoal.core.schema import Utc, View, utcnow
from shoal.core.states import AttemptState, JobState, NodeState
from shoal.server.context import Context
from shoal.server.models.artifacts import Checkpoint, Dataset
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.people import Member, Workspace
from shoal.server.policy import Principal
from shoal.server.services import machines, upkeep, views

_FRESH = timedelta(days=2)
_STORE_S = 60.0
_stores: dict[Path, tuple[float, UsageView]] = {}


class PlacedJob(View):
    """A job and the workspace it is in."""

    workspace: str
    workspace_id: str
    job: JobSummary
    waiting: str | None = None


class Trouble(View):
    """Something a person should look at."""

    text: str
    job: PlacedJob | None = None


class HomeView(View):
    active: list[PlacedJob]
    recent: list[PlacedJob]
    attention: list[Trouble]
    pool: CapacityView


class Occupant(View):
    machine: str
    slots: list[int]
    since: Utc | None
    job: PlacedJob | None
    """None when it is in a workspace one is not a member of."""


class PoolView(View):
    pool: CapacityView
    occupants: list[Occupant]


class WorkspaceUsage(View):
    workspace: str
    workspace_id: str
    jobs: int
    slot_seconds: float
    datasets_size: int
    checkpoints_size: int


class UsageByPerson(View):
    days: list[tuple[str, float]]
    """(date, slot-seconds) of the last thirty days."""
    workspaces: list[WorkspaceUsage]


def home(ctx: Context, principal: Principal) -> HomeView:
    pool = machines.capacity(ctx)
    ended = _mine(principal).where(Job.ended_at.is_not(None)).order_by(Job.ended_at.desc())
    recent = _jobs(ctx, ended.limit(10))
    failed = ended.where(Job.state == JobState.FAILED.value, Job.ended_at > utcnow() - _FRESH)
    attention = [Trouble(text=p.job.reason or "it failed", job=p) for p in _jobs(ctx, failed.limit(5))]
    attention += [Trouble(text=f"{m.name}: {problem}") for m in pool.machines for problem in m.problems]
    return HomeView(active=active(ctx, principal, 50), recent=recent, attention=attention, pool=pool)


def active(ctx: Context, principal: Principal, limit: int = 1000) -> list[PlacedJob]:
    """What runs or waits, newest first."""
    return _jobs(ctx, _mine(principal).where(Job.ended_at.is_(None)).order_by(Job.id.desc()).limit(limit))


def ended_since(ctx: Context, principal: Principal, since: datetime) -> list[PlacedJob]:
    return _jobs(ctx, _mine(principal).where(Job.ended_at > since).order_by(Job.ended_at).limit(100))


def some(ctx: Context, principal: Principal, job_ids: Collection[str]) -> dict[str, PlacedJob]:
    """Those of these jobs that one may see, by id."""
    found = _jobs(ctx, _mine(principal).where(Job.id.in_(list(job_ids)[:1000])))
    return {placed.job.id: placed for placed in found}


def queue(ctx: Context, principal: Principal) -> list[PlacedJob]:
    """Queued jobs in the order they will be looked at, each with why it waits."""
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


def store(ctx: Context) -> UsageView:
    """The store as a whole. All of its lists are gone through for it, so that what was found holds for a minute."""
    kept = _stores.get(ctx.layout.root)
    if kept is None or time.monotonic() - kept[0] > _STORE_S:
        kept = _stores[ctx.layout.root] = time.monotonic(), upkeep.usage(ctx)
    return kept[1]


def usage(ctx: Context, principal: Principal) -> UsageByPerson:
    mine = select(Member.workspace_id).where(Member.user_id == principal.user_id)
    with ctx.db.read() as session:
        rows = session.execute(select(Workspace.id, Workspace.name).where(Workspace.id.in_(mine)))
        names = {row.id: row.name for row in rows}
        jobs = session.execute(select(Job.id, Job.workspace_id).where(Job.workspace_id.in_(mine))).all()
        spans = session.execute(
            select(Job.workspace_id, Attempt.started_at, Attempt.ended_at, Node.slots)
            .join(Attempt, Attempt.job_id == Job.id)
            .join(Node, Node.attempt_id == Attempt.id)
            .where(Job.workspace_id.in_(mine), Attempt.started_at.is_not(None))
        ).all()
        data = _sizes(session.execute(select(Dataset.workspace_id, Dataset.size).where(Dataset.workspace_id.in_(mine))))
        kept = _sizes(
            session.execute(select(Checkpoint.workspace_id, Checkpoint.size).where(Checkpoint.workspace_id.in_(mine)))
        )
    seconds, days = _spent(spans)
    counts: dict[str, int] = defaultdict(int)
    for _, workspace_id in jobs:
        counts[workspace_id] += 1
    return UsageByPerson(
        days=days,
        workspaces=[
            WorkspaceUsage(
                workspace=name,
                workspace_id=ident,
                jobs=counts[ident],
                slot_seconds=round(seconds[ident], 1),
                datasets_size=data[ident],
                checkpoints_size=kept[ident],
            )
            for ident, name in sorted(names.items(), key=lambda item: -seconds[item[0]])
        ],
    )


def _spent(spans: Any) -> tuple[dict[str, float], list[tuple[str, float]]]:
    """Slot-seconds by workspace, and by day of the last thirty; an attempt counts for the days it touches."""
    now = utcnow()
    seconds: dict[str, float] = defaultdict(float)
    start_of = {(now - timedelta(days=back)).date(): 0.0 for back in range(29, -1, -1)}
    for workspace_id, started, ended, slots in spans:
        at, end = started, min(ended or now, now)
        seconds[workspace_id] += max(0.0, (end - at).total_seconds()) * len(slots)
        while at < end:
            midnight = (at + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
            stop = min(end, midnight)
            if at.date() in start_of:
                start_of[at.date()] += (stop - at).total_seconds() * len(slots)
            at = stop
    return seconds, [(day.isoformat(), round(value, 1)) for day, value in start_of.items()]


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
            )
            for job, workspace in session.execute(query)
        ]
