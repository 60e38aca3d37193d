"""Sweeps: create, inspect, stop, rerun, delete. The sweeper starts and ends the trials; it is notified of every change."""

from __future__ import annotations

import functools
import re
from typing import Any

from sqlalchemy import delete as sql_delete
from sqlalchemy import func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.core.errors import InvalidName, InvalidSpec, NameTaken, NotAllowedNow
from shoal.core.ids import new_id
from shoal.core.names import MAX_NAME
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.core.sweeps import (
    MAX_TRIALS,
    SweepSpec,
    SweepState,
    SweepSummary,
    SweepView,
    TrialOrder,
    TrialState,
    TrialView,
)
from shoal.server import lookup
from shoal.server.audit.record import record_action
from shoal.server.billing import budgets
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.jobs import service as job_service
from shoal.server.models.jobs import Job
from shoal.server.models.sweeps import Sweep, Trial
from shoal.server.policy import Access
from shoal.server.sweeps import views as sweep_views
from shoal.tune.search import Searcher


def create(ctx: Context, access: Access, spec: SweepSpec) -> SweepView:
    """Create a sweep and return it once it is durable. Raise if its trials could never run."""
    total = _count(spec)
    checked = job_service.check(ctx, access, spec.job)
    budgets.refuse_unpriced(ctx, spec.job.model_copy(update={"budget": spec.budget or spec.job.budget}))
    sweep_id = new_id("swp")

    def work(session: Session) -> SweepView:
        _refuse_used_names(session, access, spec.name, total)
        sweep = Sweep(
            id=sweep_id,
            workspace_id=access.workspace_id,
            name=spec.name,
            spec=spec.model_dump(mode="json"),
            source_id=checked.source.id,
            inputs=checked.inputs,
            total=total,
            created_by=access.principal.email,
            state=SweepState.RUNNING.value,
            created_at=utcnow(),
        )
        session.add(sweep)
        try:
            session.flush()
        except IntegrityError:
            raise NameTaken(
                f"There is already a sweep '{spec.name}' in workspace '{access.workspace}'.",
                hint=f"choose another name, or: shoal sweep delete {spec.name}",
            ) from None
        record_action(session, AuditAction.SWEEP_CREATE, sweep.name, sweep.id, workspace=access)
        return sweep_views.view(session, sweep)

    view = ctx.db.write(work)
    ctx.live.sweep_changed(sweep_id)
    return view


def summaries(ctx: Context, access: Access, *, limit: int = 100) -> list[SweepSummary]:
    """Return the sweeps of the workspace, newest first."""
    query = select(Sweep).where(Sweep.workspace_id == access.workspace_id).order_by(Sweep.id.desc()).limit(limit)
    with ctx.db.read() as session:
        return sweep_views.summaries(session, session.scalars(query).all())


def get(ctx: Context, access: Access, name_or_id: str) -> SweepView:
    with ctx.db.read() as session:
        return sweep_views.view(session, lookup.sweep(session, access, name_or_id))


def trials(
    ctx: Context, access: Access, name_or_id: str, *, order: TrialOrder = "number", limit: int, after: int | None = None
) -> list[TrialView]:
    """Return trials by number, or by result (best first, without a result last), starting after trial `after`."""
    with ctx.db.read() as session:
        sweep = lookup.sweep(session, access, name_or_id)
        query = sweep_views.trials_query().where(Trial.sweep_id == sweep.id).limit(limit)
        if order == "result":
            query = _by_result(session, sweep, query, after)
        else:
            query = query.where(Trial.number > (-1 if after is None else after)).order_by(Trial.number)
        return [sweep_views.trial_view(row) for row in session.execute(query)]


def stop(ctx: Context, access: Access, name_or_id: str) -> SweepView:
    """Stop a sweep. Idempotent; a sweep that has ended stays unchanged."""

    def work(session: Session) -> str:
        sweep = lookup.sweep(session, access, name_or_id)
        if sweep.state == SweepState.RUNNING and sweep.stop_requested_at is None:
            sweep.stop_requested_at, sweep.reason = utcnow(), f"stopped by {access.principal.email}"
            sweep.revision += 1
            record_action(session, AuditAction.SWEEP_STOP, sweep.name, sweep.id, workspace=access)
        return sweep.id

    return _changed(ctx, access, ctx.db.write(work, essential=True))


def rerun(ctx: Context, access: Access, name_or_id: str, *, failed: bool = False) -> SweepView:
    """Continue a sweep that was stopped or given up. With `failed`, failed trials run again with the same values."""

    def work(session: Session) -> str:
        sweep = lookup.sweep(session, access, name_or_id)
        if sweep.state == SweepState.RUNNING and sweep.stop_requested_at is not None:
            raise NotAllowedNow(
                f"Sweep '{sweep.name}' is stopping; it can be continued once its trials have stopped.",
                hint=f"shoal sweep inspect {sweep.name}",
            )
        budgets.refuse_spent(session, sweep)
        states = [TrialState.STOPPED.value, *([TrialState.FAILED.value] if failed else [])]
        mine = (Trial.sweep_id == sweep.id) & Trial.state.in_(states) & Trial.again.is_(False)
        again = session.scalar(select(func.count()).where(mine)) or 0
        given = session.scalar(select(func.count()).where(Trial.sweep_id == sweep.id)) or 0
        if not again and (given >= sweep.total or sweep.state == SweepState.RUNNING):
            _refuse_rerun(sweep, failed)
        session.execute(update(Trial).where(mine).values(again=True))
        lost = (Trial.sweep_id == sweep.id) & (Trial.state == TrialState.FAILED.value) & Trial.again.is_(False)
        sweep.forgiven = session.scalar(select(func.count()).where(lost)) or 0
        sweep.state, sweep.reason, sweep.ended_at = SweepState.RUNNING.value, None, None
        sweep.stop_requested_at = None
        sweep.revision += 1
        record_action(session, AuditAction.SWEEP_RERUN, sweep.name, sweep.id, workspace=access)
        return sweep.id

    return _changed(ctx, access, ctx.db.write(work))


def delete(ctx: Context, access: Access, name_or_id: str, *, jobs: bool = False) -> None:
    """Delete a sweep that has ended, with `jobs` also the jobs it started. Jobs that it only reused always stay."""

    def work(session: Session) -> tuple[str, list[str]]:
        sweep = lookup.sweep(session, access, name_or_id)
        if sweep.state == SweepState.RUNNING:
            raise NotAllowedNow(
                f"Sweep '{sweep.name}' is running; only a sweep that has ended can be deleted.",
                hint=f"shoal sweep stop {sweep.name}",
            )
        own = select(Job.id, Job.name, Job.state).join(Trial, Trial.job_id == Job.id)
        own = own.where(Trial.sweep_id == sweep.id, Trial.state != TrialState.REUSED.value)
        found = session.execute(own).all() if jobs else []
        for job in found:
            if not JobState(job.state).is_terminal:
                raise NotAllowedNow(
                    f"Its job '{job.name}' is {job.state}; only finished jobs can be deleted.",
                    hint=f"shoal training stop {job.name}",
                )
        with_jobs = f"with {len(found)} job{'' if len(found) == 1 else 's'}" if jobs else ""
        record_action(session, AuditAction.SWEEP_DELETE, sweep.name, sweep.id, workspace=access, detail=with_jobs)
        session.execute(sql_delete(Sweep).where(Sweep.id == sweep.id))
        return sweep.id, [job.id for job in found]

    sweep_id, gone = ctx.db.write(work, essential=True)
    for some in in_parts(gone):  # in parts, so that other writers need not wait long
        job_service.clean_up(
            ctx, some, ctx.db.write(functools.partial(job_service.remove, job_ids=some), essential=True)
        )
    ctx.live.sweep_changed(sweep_id)


def _count(spec: SweepSpec) -> int:
    """Return the number of trials. Also choose values for the first one, so that an impossible search is refused now."""
    searcher = Searcher(spec)
    total = searcher.count
    if total > MAX_TRIALS:
        raise InvalidSpec(
            f"That is a grid of {total:,} trials; the limit is {MAX_TRIALS:,}.",
            hint=f"shoal sweep run {spec.name} --search tpe --trials 200 …",
        )
    longest = MAX_NAME - len(f"-{total - 1}")
    if len(spec.name) > longest:
        raise InvalidName(f"'{spec.name}' is too long for a sweep of {total} trials: at most {longest} letters.")
    searcher.ask(0)
    return total


def _refuse_used_names(session: Session, access: Access, name: str, total: int) -> None:
    """Raise NameTaken if jobs already have names that the sweep's trials would get."""
    like = select(Job.name).where(
        Job.workspace_id == access.workspace_id, Job.name.startswith(f"{name}-", autoescape=True)
    )
    ours = re.compile(re.escape(name) + r"-(0|[1-9]\d*)")
    taken = [job for job in session.scalars(like) if (m := ours.fullmatch(job)) and int(m[1]) < total]
    if taken:
        more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise NameTaken(
            f"Jobs named like the trials of a sweep '{name}' are already in workspace '{access.workspace}': "
            f"'{min(taken)}'{more}.",
            hint=f"choose another name, or: shoal training delete {min(taken)}",
        )


def _refuse_rerun(sweep: Sweep, failed: bool) -> None:
    if sweep.state == SweepState.RUNNING:
        raise NotAllowedNow(
            f"Sweep '{sweep.name}' is running, and none of its trials has {'failed' if failed else 'been stopped'}.",
            hint=f"shoal sweep inspect {sweep.name}",
        )
    missing = "failed or been stopped" if failed else "been stopped"
    raise NotAllowedNow(
        f"Sweep '{sweep.name}' is {sweep.state}, and none of its trials has {missing}: there is nothing to run again.",
        hint=f"shoal sweep trials {sweep.name}" if failed else f"shoal sweep rerun {sweep.name} --failed",
    )


def _by_result(session: Session, sweep: Sweep, query: Any, after: int | None) -> Any:
    is_min = sweep.spec["direction"] == "min"
    order = Trial.result.asc() if is_min else Trial.result.desc()
    query = query.order_by(Trial.result.is_(None), order, Trial.number)
    if after is None:
        return query
    last = session.scalar(select(Trial.result).where(Trial.sweep_id == sweep.id, Trial.number == after))
    if last is None:
        return query.where(Trial.result.is_(None), Trial.number > after)
    behind = Trial.result > last if is_min else Trial.result < last
    return query.where(or_(behind, (Trial.result == last) & (Trial.number > after), Trial.result.is_(None)))


def _changed(ctx: Context, access: Access, sweep_id: str) -> SweepView:
    ctx.live.sweep_changed(sweep_id)
    return get(ctx, access, sweep_id)
