"""Budgets of jobs and sweeps. The scheduler stops them before they exceed their budget, early enough to save a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from shoal.core.agents import BEAT_INTERVAL_S
from shoal.core.errors import InvalidSpec, NotAllowedNow
from shoal.core.jobs import JobSpec, stop_grace_s
from shoal.core.money import Budget, as_typed, cost_of, parse_budget
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.core.sweeps import SweepState, TrialState
from shoal.server.billing.ledger import price_of
from shoal.server.billing.usage_clock import UsageClock
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.jobs import devices
from shoal.server.models.jobs import Event, Job
from shoal.server.models.ledger import LedgerEntry, OpenSpan
from shoal.server.models.sweeps import Sweep, Trial

_NEARLY = 0.99
"""Share of its budget at which a sweep counts as used up: it is stopped early, to save, so a little is always left."""
_NOTICE_S = 2 * BEAT_INTERVAL_S
"""Seconds from the scheduler's decision until the agent sends SIGTERM."""
Over = list[tuple[str, str]]
"""Pairs of an id and a text: the reason for a stop, or a budget."""


def refuse_unpriced(ctx: Context, spec: JobSpec) -> None:
    """Raise if a job has a budget in money but may run on slots that have no price."""
    if spec.budget is None or parse_budget(spec.budget).micros is None:
        return
    models = sorted(devices.usable_models(ctx.engine.capacity(), spec, spec.exclude))
    free = list(dict.fromkeys(kind for kind, model in models if price_of(ctx.settings, kind, model) == 0))
    if free:
        raise InvalidSpec(
            f"A budget of {spec.budget} {ctx.settings.currency} would never be reached: "
            f"slots of kind {', '.join(free)} have no price here.",
            hint=f"limit its slot-hours: --budget 2h; or an admin sets a price: shoal billing price {free[0]} 0.10",
            details={"kinds": free},
        )


def refuse_spent(session: Session, sweep: Sweep) -> None:
    """Raise if a sweep has used up its budget and so cannot be resumed."""
    text = sweep.spec.get("budget")
    if text and _charged(session, parse_budget(text), _of_trials(sweep.id)) >= _cap(parse_budget(text)) * _NEARLY:
        raise NotAllowedNow(
            f"Sweep '{sweep.name}' has used up its budget of {text}.",
            hint=f"start another, which reuses the finished trials: shoal sweep run {sweep.name}-more …",
        )


def used_up(session: Session, ctx: Context) -> tuple[Over, Over]:
    """Return the running jobs and sweeps that must be stopped now to stay within their budget, each with the reason."""
    spans = list(session.scalars(select(OpenSpan)))
    if not spans:
        return [], []
    by_job: dict[str, list[OpenSpan]] = {}
    for span in spans:
        by_job.setdefault(span.job_id, []).append(span)
    jobs, sweeps = [], []
    for job_id, text in _with_budgets(session, by_job):
        counted = (LedgerEntry.job_id == job_id) & (LedgerEntry.attempt > _resumed_after(session, job_id))
        if reason := _reason_if_over(session, ctx, text, counted, by_job[job_id]):
            jobs.append((job_id, reason))
    for sweep_id, text in session.execute(_SWEEPS):
        mine = _of_trials(sweep_id)
        running = session.scalars(select(OpenSpan).where(OpenSpan.job_id.in_(_trial_jobs(sweep_id)))).all()
        if running and (reason := _reason_if_over(session, ctx, text, mine, running)):
            sweeps.append((sweep_id, reason))
    return jobs, sweeps


def used_share(session: Session, job: Job) -> float | None:
    """Return the share of its budget that a job was charged for; None without a budget. What runs now is charged in steps."""
    text = job.spec.get("budget")
    if not text:
        return None
    budget = parse_budget(text)
    counted = (LedgerEntry.job_id == job.id) & (LedgerEntry.attempt > _resumed_after(session, job.id))
    return _charged(session, budget, counted) / (_cap(budget) or 1)


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


def _reason_if_over(
    session: Session, ctx: Context, text: str, entered: ColumnElement[bool], spans: Iterable[OpenSpan]
) -> str | None:
    budget, currency = parse_budget(text), ctx.settings.currency
    spans = list(spans)
    used, graces = _charged(session, budget, entered), _graces_s(session, ctx, {span.job_id for span in spans})
    until_stopped = 0.0
    for span in spans:
        used += _counted(budget, span.slots * _open_ms(span, ctx.usage_clock), span.price)
        pace = _counted(budget, span.slots * 1000, span.price)
        until_stopped += pace * (graces[span.job_id] + _NOTICE_S)
        currency = span.currency
    if used + until_stopped < _cap(budget):
        return None
    return f"budget of {as_typed(text, currency)} reached"


def _graces_s(session: Session, ctx: Context, job_ids: Iterable[str]) -> dict[str, float]:
    """Return the seconds that each job may still run after it was asked to stop."""
    found: dict[str, float] = {}
    for ids in in_parts(job_ids):
        rows = session.execute(select(Job.id, Job.spec).where(Job.id.in_(ids)))
        found |= {job_id: stop_grace_s(spec, ctx.settings.stop_grace_s) for job_id, spec in rows}
    return found


def _with_budgets(session: Session, job_ids: Iterable[str]) -> Over:
    found: Over = []
    for ids in in_parts(job_ids):
        query = select(Job.id, Job.spec["budget"].as_string()).where(Job.id.in_(ids), Job.ended_at.is_(None))
        not_stopping = Job.stop_requested_at.is_(None) | (Job.stop_state == JobState.QUEUED.value)
        found += [(job_id, budget) for job_id, budget in session.execute(query.where(not_stopping)) if budget]
    return found


def _resumed_after(session: Session, job_id: str) -> int:
    """Return the attempt after which the job was last resumed by a person; use up to that attempt no longer counts."""
    after = func.max(Event.data["after"].as_integer())
    return session.scalar(select(after).where(Event.job_id == job_id, Event.kind == "queued")) or 0


def _charged(session: Session, budget: Budget, which: ColumnElement[bool]) -> int:
    what = LedgerEntry.slot_ms if budget.micros is None else LedgerEntry.cost
    return session.scalar(select(func.sum(what)).where(which)) or 0


def _of_trials(sweep_id: str) -> ColumnElement[bool]:
    return LedgerEntry.job_id.in_(_trial_jobs(sweep_id))


def _trial_jobs(sweep_id: str) -> Select[Any]:
    """Select the jobs of a sweep's own trials; reused ones were charged to an earlier sweep."""
    return select(Trial.job_id).where(Trial.sweep_id == sweep_id, Trial.state != TrialState.REUSED.value)


def _open_ms(span: OpenSpan, usage_clock: UsageClock) -> int:
    """Return the milliseconds an open span has lasted, assuming that its node still runs."""
    return 0 if span.start_ms is None else max(0, usage_clock.now_ms - span.start_ms)


def _counted(budget: Budget, slot_ms: int, price: int) -> int:
    return slot_ms if budget.micros is None else cost_of(slot_ms, price)


def _cap(budget: Budget) -> int:
    return (budget.slot_ms if budget.micros is None else budget.micros) or 0
