"""The queue for people: its order, why a job waits, what would start it, and what would happen to a job not yet submitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.errors import InvalidSpec, NotAllowedNow
from shoal.core.jobs import JobSpec, JobView
from shoal.core.queue import (
    JobChange,
    QueueRow,
    QueueShare,
    QueueView,
    StartEstimateRequest,
    StartEstimateView,
    WhyView,
)
from shoal.core.states import JobState
from shoal.server import lookup
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.engines import queue as engine_queue
from shoal.server.jobs import service as jobs
from shoal.server.jobs import stacks
from shoal.server.jobs.events import record_event
from shoal.server.models.jobs import Job
from shoal.server.models.workspaces import Member, Workspace
from shoal.server.policy import Access, Principal
from shoal.server.queue import quotas, wait_reasons
from shoal.server.scheduler.decide import decide
from shoal.server.scheduler.explain import explain, forecast, likely_lengths
from shoal.server.scheduler.model import Decision, QueuedJob, QueueState
from shoal.server.scheduler.order import ranked
from shoal.server.scheduler.share import held_slots
from shoal.server.scheduler.simulate import Played, play

_MOST_FORECAST = 2_000
"""Longest queue for which all starts are simulated."""
_WISH = "wish"


def read_state(ctx: Context) -> QueueState:
    """Return the queue as the scheduler sees it now."""
    machines = ctx.engine.capacity()
    with ctx.db.read() as session:
        return ctx.queue.read(session, machines, ctx.settings)


def show(ctx: Context, principal: Principal, *, limit: int, starts: bool) -> QueueView:
    """Return the first `limit` jobs in queue order, with names for the person's own.

    With `starts`, also their likely starts.
    """
    seen = read_state(ctx)
    decision, line = decide(seen), ranked(seen)
    line = [job for job in line if job.job_id in decision.waiting]
    played = _forward(seen) if starts else Played()
    with ctx.db.read() as session:
        mine = _workspaces(session, principal)
        names = _names(session, (job.job_id for job in line[:limit]), mine)
    held = held_slots(seen.running)
    return QueueView(
        slots_total=sum(m.slots for m in seen.machines),
        slots_free=sum(len(m.free) for m in seen.machines),
        running=len(seen.running),
        queued=len(line),
        rows=[
            QueueRow(
                place=place,
                job_id=job.job_id if job.job_id in names else None,
                job=names.get(job.job_id),
                workspace=mine.get(job.workspace),
                priority=job.priority,
                min_nodes=job.min_nodes,
                max_nodes=job.max_nodes,
                accels=job.accels,
                device=job.device,
                since=_moment(job.since),
                waits=decision.waiting[job.job_id],
                starts_at=_moment(played.starts[job.job_id]) if job.job_id in played.starts else None,
            )
            for place, job in enumerate(line[:limit], 1)
        ],
        shares=[_share(seen, name, workspace, held) for workspace, name in sorted(mine.items(), key=lambda w: w[1])],
    )


def why(ctx: Context, access: Access, name_or_id: str) -> WhyView:
    """Return the main reason why a job waits, with evidence, its likely start and a change that would start it now."""
    with ctx.db.read() as session:
        job = lookup.job(session, access, name_or_id)
        queued_there = engine_queue.why(ctx, session, job)
        still = stacks.stalled(ctx, session, job)
    if queued_there:
        return wait_reasons.in_engine(job, queued_there)
    if still is not None:
        return wait_reasons.stalled(job, still)
    if job.state != JobState.QUEUED:
        return wait_reasons.not_waiting(job)
    seen = read_state(ctx)
    if job.id in seen.held:
        return wait_reasons.after_others(job, seen.held[job.id])
    if all(queued.job_id != job.id for queued in seen.queue):
        with ctx.db.read() as session:  # it has just left the queue
            return wait_reasons.not_waiting(lookup.job(session, access, job.id))
    told = explain(seen, job.id)
    with ctx.db.read() as session:
        others = [*told.ahead[: wait_reasons.MOST], *told.waits_for, *(told.change.preempts if told.change else ())]
        names = _names(session, [*others, *filter(None, [told.head])], _workspaces(session, access.principal))
    return wait_reasons.why_view(seen, job, access, told, names)


def change(ctx: Context, access: Access, name_or_id: str, body: JobChange) -> JobView:
    """Change the requirements of a waiting job. It keeps its time of submission, which orders the queue."""
    wanted = {k: (None if k.endswith("_s") and v == 0 else v) for k, v in body.model_dump(exclude_none=True).items()}
    if not wanted:
        raise InvalidSpec("Say what to change.", hint="shoal training change JOB --priority 10")
    with ctx.db.read() as session:
        spec = _changed_spec(lookup.job(session, access, name_or_id), wanted)
        quotas.refuse_larger(session, access, spec)
    jobs.refuse_impossible(ctx, spec)

    def work(session: Session) -> str:
        job = lookup.job(session, access, name_or_id)
        if job.state != JobState.QUEUED:
            raise NotAllowedNow(
                f"Job '{job.name}' is {job.state}; only waiting jobs can be changed.",
                hint=f"shoal training inspect {job.name}",
            )
        spec = _changed_spec(job, wanted)
        job.spec, job.priority = spec.model_dump(mode="json"), spec.priority
        changes = ", ".join(f"{name} {_display_value(value)}" for name, value in wanted.items())
        record_event(session, job, "changed", f"changed by {access.principal.email}: {changes}")
        return job.id

    job_id = ctx.db.write(work)
    ctx.queue.forget(job_id)
    ctx.live.job_changed(job_id, schedule=True)
    return jobs.get(ctx, access, job_id)


def simulate(ctx: Context, access: Access, wish: StartEstimateRequest) -> StartEstimateView:
    """Predict the start of a job if it were submitted now, and what it would preempt or delay."""
    spec = JobSpec(name="wish", entry=["-"], source_id="-", **wish.model_dump())
    before, after = _with_job(ctx, access, spec)
    decision = decide(after)
    told = forecast(after, _WISH)
    starts_now = _starts(decision)
    preempts = [victim for victim, winner in decision.preempts.items() if winner == _WISH]
    with ctx.db.read() as session:
        names = _names(session, preempts, _workspaces(session, access.principal))
    return StartEstimateView(
        starts_now=starts_now,
        starts_at=None if told.starts_in_s is None else _moment(after.now + told.starts_in_s),
        sure=told.sure,
        place=None if starts_now else list(decision.waiting).index(_WISH) + 1,
        text="it would start at once" if starts_now else decision.waiting[_WISH],
        preempts=[names.get(victim, "a job of another workspace") for victim in preempts],
        delays=_delays(before, after),
    )


def waits_for(ctx: Context, access: Access, spec: JobSpec) -> str | None:
    """Return what a job would wait for if it were submitted now, or None if it would start. Makes no forecast."""
    decision = decide(_with_job(ctx, access, spec)[1])
    return None if _starts(decision) else decision.waiting[_WISH]


def _with_job(ctx: Context, access: Access, spec: JobSpec) -> tuple[QueueState, QueueState]:
    """Return the queue without and with this job. Raises CanNeverRun and others if the job would be refused."""
    jobs.refuse_impossible(ctx, spec)
    with ctx.db.read() as session:
        quotas.refuse_larger(session, access, spec)
    before = read_state(ctx)
    return before, replace(before, queue=[*before.queue, _queued(before.now, access, spec)])


def _starts(decision: Decision) -> bool:
    return any(job_id == _WISH for job_id, _ in decision.starts)


def _delays(before: QueueState, after: QueueState) -> int:
    plain, changed = _forward(before).starts, _forward(after).starts
    return sum(changed.get(job_id, float("inf")) > start + 1.0 for job_id, start in plain.items())


def _forward(seen: QueueState) -> Played:
    if len(seen.queue) > _MOST_FORECAST:
        return Played()
    passes = max(20, 400_000 // (len(seen.queue) + 1))
    return play(seen, likely_lengths(seen)[0], max_passes=passes)


def _queued(now: float, access: Access, wish: JobSpec) -> QueuedJob:
    return QueuedJob(
        job_id=_WISH,
        priority=wish.priority,
        order=(now, _WISH),
        min_nodes=wish.min_nodes,
        max_nodes=wish.max_nodes,
        accels=wish.accels,
        workspace=access.workspace_id,
        since=now,
        limit_s=wish.time_limit_s,
        expected_s=wish.expected_s,
        exclude=frozenset(wish.exclude),
        prefer=frozenset(wish.prefer),
        device=wish.device,
        gpu=wish.gpu or "",
        gpu_memory=int((wish.gpu_memory_gb or 0) * 1e9),
        mixed_models=wish.mixed_models,
        labels=frozenset(f"{key}={value}" for key, value in wish.labels.items()),
    )


def _changed_spec(job: Job, wanted: Mapping[str, object]) -> JobSpec:
    merged = {**job.spec, **wanted}
    if "max_nodes" not in wanted:
        merged["max_nodes"] = max(merged["max_nodes"], merged["min_nodes"])
    merged["grow"] = merged.get("grow", False) and merged["max_nodes"] > merged["min_nodes"]
    try:
        return JobSpec.model_validate(merged)
    except ValueError as error:
        raise InvalidSpec(str(error)) from None


def _display_value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _workspaces(session: Session, principal: Principal) -> dict[str, str]:
    """Return id → name of the workspaces the person is a member of."""
    query = select(Workspace.id, Workspace.name).join(Member, Member.workspace_id == Workspace.id)
    query = query.where(Member.user_id == principal.user_id)
    if principal.only_workspace is not None:
        query = query.where(Workspace.id == principal.only_workspace)
    return {row.id: row.name for row in session.execute(query)}


def _names(session: Session, job_ids: Iterable[str], mine: Mapping[str, str]) -> dict[str, str]:
    """Return id → name of those jobs that are in the person's workspaces (`mine`)."""
    names: dict[str, str] = {}
    for ids in in_parts(job_ids):
        rows = session.execute(select(Job.id, Job.name, Job.workspace_id).where(Job.id.in_(ids)))
        names.update({job_id: name for job_id, name, workspace in rows if workspace in mine})
    return names


def _share(seen: QueueState, name: str, workspace: str, held: Mapping[str, int]) -> QueueShare:
    share = seen.shares.get(workspace)
    return QueueShare(
        workspace=name,
        slots=share.quota if share else None,
        weight=share.weight if share else 1.0,
        in_use=held.get(workspace, 0),
        used_slot_hours=round(share.used_s / 3600, 3) if share else 0.0,
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
