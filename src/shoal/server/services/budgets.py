"""What a job or a sweep may use at most. The scheduler stops it, with time to save, before it has used more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from shoal.core.agents import BEAT_INTERVAL_S
from shoal.core.errors import InvalidSpec, NotAllowedNow
from shoal.core.jobs import JobSpec
from shoal.core.money import Budget, cost_of, parse_budget
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.core.sweeps import SweepState, TrialState
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.meter import Meter
from shoal.server.models.jobs import Event, Job
from shoal.server.models.ledger import LedgerEntry, OpenSpan
from shoal.server.models.sweeps import Sweep, Trial
from shoal.server.services import devices
from shoal.server.services.ledger import price_of

_NEARLY = 0.99
"""Stopped in time to save, a sweep rarely uses the last of its budget."""
_NOTICE_S = 2 * BEAT_INTERVAL_S
"""From the scheduler's look to the agent's SIGTERM."""
Over = list[tuple[str, str]]
"""Ids, each with the reason to give."""


def refuse_unpriced(ctx: Context, spec: JobSpec) -> None:
    """A budget in money needs slots that cost some, wherever the job may come to run."""
    if spec.budget is None or parse_budget(spec.budget).micros is None:
        return
    kinds = sorted(devices.usable_kinds(ctx.engine.capacity(), spec, spec.exclude))
    free = [kind for kind in kinds if price_of(ctx.settings, kind) == 0]
    if free:
        raise InvalidSpec(
            f"A budget of {spec.budget} {ctx.settings.currency} would never be reached: "
            f"slots of kind {', '.join(free)} have no price here.",
            hint=f"limit its slot-hours: --budget 2h; or an admin sets a price: shoal billing price {free[0]} 0.10",
            details={"kinds": free},
        )


def refuse_spent(session: Session, sweep: Sweep) -> None:
    """A sweep goes on only with what is left of its budget."""
    text = sweep.spec.get("budget")
    if text and _entered(session, parse_budget(text), _of_trials(sweep.id)) >= _cap(parse_budget(text)) * _NEARLY:
        raise NotAllowedNow(
            f"Sweep '{sweep.name}' has used up its budget of {text}.",
            hint=f"begin another, which reuses the trials that are done: shoal sweep run {sweep.name}-more …",
        )


def used_up(session: Session, ctx: Context) -> tuple[Over, Over]:
    """Jobs, and sweeps, that run and would exceed their budget if they were not stopped now."""
    spans = list(session.scalars(select(OpenSpan)))
    if not spans:
        return [], []
    by_job: dict[str, list[OpenSpan]] = {}
    for span in spans:
        by_job.setdefault(span.job_id, []).append(span)
    jobs, sweeps = [], []
    for job_id, text in _with_budgets(session, by_job):
        counted = (LedgerEntry.job_id == job_id) & (LedgerEntry.attempt > _resumed_after(session, job_id))
        if told := _told_if_over(session, ctx, text, counted, by_job[job_id]):
            jobs.append((job_id, told))
    for sweep_id, text in session.execute(_SWEEPS):
        mine = _of_trials(sweep_id)
        running = session.scalars(select(OpenSpan).where(OpenSpan.job_id.in_(_trial_jobs(sweep_id)))).all()
        if running and (told := _told_if_over(session, ctx, text, mine, running)):
            sweeps.append((sweep_id, told))
    return jobs, sweeps


def stop_sweep(session: Session, sweep_id: str, reason: str) -> None:
    sweep = session.get(Sweep, sweep_id)
    if sweep is not None and sweep.state == SweepState.RUNNING and sweep.stop_requested_at is None:
        sweep.stop_requested_at, sweep.reason = utcnow(), reason
        sweep.revision += 1


_BUDGET = Sweep.spec["budget"].as_string()
_SWEEPS = select(Sweep.id, _BUDGET).where(
    Sweep.state == SweepState.RUNNING.value,
    Sweep.ended_at.is_(None),
    Sweep.stop_requested_at.is_(None),
    _BUDGET.is_not(None),
)


def _told_if_over(
    session: Session, ctx: Context, text: str, entered: ColumnElement[bool], spans: Iterable[OpenSpan]
) -> str | None:
    budget, currency = parse_budget(text), ctx.settings.currency
    used, pace = _entered(session, budget, entered), 0
    for span in spans:
        used += _counted(budget, span.slots * _open_ms(span, ctx.meter), span.price)
        pace += _counted(budget, span.slots * 1000, span.price)
        currency = span.currency
    if used + pace * (ctx.settings.stop_grace_s + _NOTICE_S) < _cap(budget):
        return None
    return f"budget of {budget.text(currency)} reached"


def _with_budgets(session: Session, job_ids: Iterable[str]) -> Over:
    found: Over = []
    for ids in in_parts(job_ids):
        query = select(Job.id, Job.spec["budget"].as_string()).where(Job.id.in_(ids), Job.ended_at.is_(None))
        not_stopping = Job.stop_requested_at.is_(None) | (Job.stop_state == JobState.QUEUED.value)
        found += [(job_id, budget) for job_id, budget in session.execute(query.where(not_stopping)) if budget]
    return found


def _resumed_after(session: Session, job_id: str) -> int:
    """The attempt after which someone last resumed it; what it used before is not counted any more."""
    after = func.max(Event.data["after"].as_integer())
    return session.scalar(select(after).where(Event.job_id == job_id, Event.kind == "queued")) or 0


def _entered(session: Session, budget: Budget, which: ColumnElement[bool]) -> int:
    what = LedgerEntry.slot_ms if budget.micros is None else LedgerEntry.cost
    return session.scalar(select(func.sum(what)).where(which)) or 0


def _of_trials(sweep_id: str) -> ColumnElement[bool]:
    return LedgerEntry.job_id.in_(_trial_jobs(sweep_id))


def _trial_jobs(sweep_id: str) -> Select[Any]:
    """Its own; what it reuses was paid for before."""
    return select(Trial.job_id).where(Trial.sweep_id == sweep_id, Trial.state != TrialState.REUSED.value)


def _open_ms(span: OpenSpan, meter: Meter) -> int:
    """Up to now: it is not known to be gone."""
    return 0 if span.start_ms is None else max(0, meter.now_ms - span.start_ms)


def _counted(budget: Budget, slot_ms: int, price: int) -> int:
    return slot_ms if budget.micros is None else cost_of(slot_ms, price)


def _cap(budget: Budget) -> int:
    return (budget.slot_ms if budget.micros is None else budget.micros) or 0
