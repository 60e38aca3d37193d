"""Quotes: the likely duration and cost of a job, from similar jobs of its workspace."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.billing import QuoteRequest, QuoteRow, QuoteView
from shoal.core.money import MILLION, cost_of
from shoal.core.preflight import PreflightFacts
from shoal.core.states import JobState
from shoal.server import lookup
from shoal.server.billing.ledger import price_of
from shoal.server.billing.quote_rules import Estimate, Past, estimate, is_similar, shape, sizes, steps_of
from shoal.server.context import Context
from shoal.server.jobs.devices import usable_kinds, usable_models
from shoal.server.models.jobs import Attempt, Job
from shoal.server.models.metrics import MetricBlock, MetricSeries
from shoal.server.models.sources import Source
from shoal.server.policy import Access
from shoal.server.preflight import reports as preflight_reports

_MOST_EXAMINED = 500
_MOST = 20
_STRETCHES = 4
_FEW = 8
"""Points needed to measure several paces; with fewer there is only one."""


def quote(ctx: Context, access: Access, ask: QuoteRequest) -> QuoteView:
    with ctx.db.read() as session:
        past = _past(session, access, ask)
    machines = ctx.engine.capacity()
    kinds = usable_kinds(machines, ask)
    pool = [m for m in machines if m.state == "up" and m.kind in kinds]
    steps, how = steps_of(ask.entry, past)
    asked = dict.fromkeys([(ask.min_nodes, ask.accels), (ask.max_nodes, ask.accels)])
    wanted = [*asked, *sizes((ask.min_nodes, ask.accels), past, [m.slots for m in pool])]
    prices = [price_of(ctx.settings, kind, model) for kind, model in usable_models(pool, ask)] or [0]
    rows, names = [], dict[str, None]()
    for size in dict.fromkeys(wanted):
        if (found := estimate(ask.entry, size, past, steps)) is not None:
            rows.append(_row(size, found, min(prices), max(prices)))
            names |= dict.fromkeys(found.jobs)
    return QuoteView(
        rows=rows,
        rests_on=list(names),
        said=_notes(ask, past, rows, how),
        steps=steps,
        currency=ctx.settings.currency,
        price=max(prices) / MILLION,
    )


def _row(size: tuple[int, int], found: Estimate, cheapest: int, dearest: int) -> QuoteRow:
    nodes, accels = size
    slots = nodes * accels

    def cost(seconds: float | None, price: int) -> float | None:
        return None if seconds is None or not dearest else cost_of(round(seconds * 1000) * slots, price) / MILLION

    return QuoteRow(
        nodes=nodes,
        accels=accels,
        slots=slots,
        basis=found.basis,
        low_s=round(found.low_s, 1),
        high_s=None if found.high_s is None else round(found.high_s, 1),
        cost_low=cost(found.low_s, cheapest),
        cost_high=cost(found.high_s, dearest),
        jobs=len(found.jobs),
    )


def _notes(ask: QuoteRequest, past: Sequence[Past], rows: Sequence[QuoteRow], how: str | None) -> list[str]:
    if not past:
        return ["no job of this workspace has run this script with arguments of this kind"]
    if not rows:
        return [f"similar jobs ran: {len(past)}; but this job's number of steps cannot be derived from its arguments"]
    notes = [how] if how else []
    if all(shape(p.entry) != shape(ask.entry) for p in past):
        notes.append(f"a guess: the similar jobs have other options ({_difference(ask.entry, past[0].entry)})")
    others = sum(not p.same_code for p in past)
    if others:
        notes.append(f"{others} of {len(past)} ran different code")
    if any(row.basis == "scaled" for row in rows):
        notes.append("scaled: the measured speed, applied to this job's number of steps")
    if any(row.basis == "bound" for row in rows):
        notes.append("bound: no similar job ran at that size; it cannot be faster or cheaper")
    return notes


def _difference(entry: Sequence[str], other: Sequence[str]) -> str:
    """Return which options were added (+) and left out (-) since another command line."""
    options, others = shape(entry)[1], shape(other)[1]
    return ", ".join(
        [f"+{name}" for name in sorted(options - others)] + [f"-{name}" for name in sorted(others - options)]
    )


def _past(session: Session, access: Access, ask: QuoteRequest) -> list[Past]:
    """Return similar jobs of the workspace (or the one job that was named), newest first."""
    manifest_id = None
    if ask.source_id is not None:
        manifest_id = lookup.source(session, access, ask.source_id).manifest_id
    ran = (
        select(Job, Source.manifest_id)
        .join(Source, Source.id == Job.source_id)
        .where(Job.workspace_id == access.workspace_id, Job.started_at.is_not(None), Job.run_id.is_(None))
        .order_by(Job.id.desc())
        .limit(_MOST_EXAMINED)
    )
    if ask.job is not None:
        ran = ran.where(Job.id == lookup.job(session, access, ask.job).id)
    found, near = list[Past](), list[Past]()
    like = shape(ask.entry)
    for job, code in session.execute(ran):
        if preflight_reports.is_one(job):
            # A preflight measures only a few steps, so it is used only when it is named in the request.
            found += [_from_preflight(session, job, ask.entry)] if ask.job is not None else []
            continue
        is_like = shape(job.spec["entry"]) == like
        kept = found if is_like else near
        if len(kept) >= _MOST or not (is_like or is_similar(ask.entry, job.spec["entry"])):
            continue
        if (past := _one(session, job, same_code=manifest_id in (None, code))) is not None:
            kept.append(past)
    return found or near


def _one(session: Session, job: Job, *, same_code: bool) -> Past | None:
    attempts = session.scalars(
        select(Attempt).where(Attempt.job_id == job.id, Attempt.started_at.is_not(None)).order_by(Attempt.number)
    ).all()
    spans = [(a.created_at, a.started_at, a.ended_at) for a in attempts if a.started_at and a.ended_at]
    if not spans:
        return None
    ran_s = sum((end - start).total_seconds() for _, start, end in spans)
    progress, complete = job.progress or {}, job.state == JobState.SUCCEEDED
    first, done = _paces(session, job.id, attempts[-1].number), progress.get("step")
    paces = first or ((done / ran_s,) if done and ran_s > 0 else ())
    is_steps = progress.get("unit", "step") == "step"
    return Past(
        name=job.name,
        entry=tuple(job.spec["entry"]),
        nodes=attempts[-1].num_nodes,
        accels=job.spec["accels"],
        setup_s=sum((start - made).total_seconds() for made, start, _ in spans),
        ran_s=ran_s,
        done=done if is_steps else None,
        total=progress.get("total") if is_steps else None,
        paces=paces if len(spans) == 1 or first else (),
        complete=complete,
        same_code=same_code,
    )


def _from_preflight(session: Session, job: Job, entry: Sequence[str]) -> Past:
    """Return a preflight's measurements; all time outside the steps counts as set-up."""
    report = preflight_reports.of_job(session, job.id)
    facts = report.facts if report else PreflightFacts()
    steps, step_s = report.steps if report else 0, facts.step_s or 0.0
    return Past(
        name=job.name,
        entry=tuple(entry),
        nodes=1,
        accels=1,
        setup_s=facts.first_step_s or 0.0,
        ran_s=steps * step_s,
        done=steps or None,
        total=facts.total_steps,
        paces=(1 / step_s,) if step_s else (),
        complete=False,
    )


def _paces(session: Session, job_id: str, attempt: int) -> tuple[float, ...]:
    """Return the steps per second in a few parts of the longest series that the attempt logged, slowest first."""
    from shoal.server.metrics.columns import Block

    series = session.scalar(
        select(MetricSeries.id)
        .where(MetricSeries.job_id == job_id, MetricSeries.attempt == attempt, MetricSeries.kind == "step")
        .order_by((MetricSeries.last_step - MetricSeries.first_step).desc())
        .limit(1)
    )
    if series is None:
        return ()
    points: list[tuple[int, float]] = []
    bodies = select(MetricBlock.body).where(MetricBlock.series_id == series).order_by(MetricBlock.id)
    for body in session.scalars(bodies):
        block = Block(body)
        points += zip(block.steps.tolist(), block.times.tolist(), strict=True)
    ends = [round(i * (len(points) - 1) / _STRETCHES) for i in range(_STRETCHES + 1)]
    if len(points) < _FEW:
        ends = [0, len(points) - 1]
    marks = [points[i] for i in ends] if len(points) > 1 else []
    found = [(s1 - s0) / (t1 - t0) for (s0, t0), (s1, t1) in pairwise(marks) if t1 > t0 and s1 > s0]
    return tuple(sorted(found))
