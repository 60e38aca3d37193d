"""Data of a sweep's page besides its table: the share of each state, the remaining cost, and points for the charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from shoal.core.schema import View
from shoal.core.sweeps import Direction, SweepView, TrialState
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.models.sweeps import Trial
from shoal.server.policy import Access
from shoal.server.web.command import sweep_command, where_to_run
from shoal.server.web.drafts import new_job

MOST_POINTS = 1_200
"""Maximum number of trials in a chart; more could not be distinguished."""
_BEST_POINTS = 200
"""Number of best trials that are always in a chart."""
_SHOWN = [*(state for state in TrialState if state is not TrialState.RUNNING), TrialState.RUNNING]
"""States in the order of the bar: ended trials first, so that it grows to the right."""
Told = tuple[int, str, float | None, str | None]


class Share(View):
    """One segment of the bar of states."""

    state: TrialState
    count: int
    left: float
    """Left edge, in per cent of the bar."""
    width: float


class Points(View):
    """Trials of a sweep as columns, ordered by number."""

    total: int
    """Number of all trials; the columns omit some if there are many."""
    number: list[int]
    state: list[str]
    result: list[float | None]
    job: list[str | None]
    """Ids of the trials' jobs."""
    params: dict[str, list[Any]]
    best: list[tuple[int, float]]
    """(number, result) of each trial that was better than all before it; no trial is omitted here."""


def page_data(ctx: Context, access: Access, sweep: SweepView) -> dict[str, Any]:
    source = new_job.origin(ctx, access, sweep.spec.job.source_id)
    again = sweep.spec.model_copy(update={"name": f"{sweep.name}-again"[:63]})
    return {
        "sweep": sweep,
        "ended": ended(sweep),
        "shares": shares(sweep),
        "cost_left": cost_left(sweep),
        "currency": ctx.settings.currency,
        "rerun": sweep_command(again, workspace=access.workspace, source=source),
        "where": where_to_run(source),
    }


def ended(sweep: SweepView) -> int:
    """Return the number of trials that have ended, in any state."""
    return sum(sweep.counts.values()) - sweep.counts.get(TrialState.RUNNING, 0)


def shares(sweep: SweepView) -> list[Share]:
    found, before, whole = [], 0, max(sweep.trials, sum(sweep.counts.values()))
    for state in _SHOWN:
        if count := sweep.counts.get(state, 0):
            left, width = 100 * before / whole, 100 * count / whole
            found.append(Share(state=state, count=count, left=round(left, 3), width=round(width, 3)))
            before += count
    return found


def cost_left(sweep: SweepView) -> float | None:
    """Estimate the cost of the remaining trials from the mean cost of the started ones; None if unknown."""
    begun = sum(sweep.counts.values()) - sweep.counts.get(TrialState.REUSED, 0)
    if not sweep.cost or not begun or sweep.ended_at is not None:
        return None
    return sweep.cost / begun * max(0, sweep.trials - sum(sweep.counts.values()))


def points(ctx: Context, sweep: SweepView) -> Points:
    mine = select(Trial.number, Trial.state, Trial.result, Trial.job_id).where(Trial.sweep_id == sweep.id)
    with ctx.db.read() as session:
        rows = session.execute(mine.order_by(Trial.number))
        told = [(number, state, result, job_id) for number, state, result, job_id in rows]
        chosen = thin(told, sweep.direction)
        params: dict[int, dict[str, Any]] = {}
        for some in in_parts(number for number, *_ in chosen):
            of = select(Trial.number, Trial.params).where(Trial.sweep_id == sweep.id, Trial.number.in_(some))
            params.update((row.number, row.params) for row in session.execute(of))
    return Points(
        total=len(told),
        number=[number for number, *_ in chosen],
        state=[state for _, state, _, _ in chosen],
        result=[result for _, _, result, _ in chosen],
        job=[job for *_, job in chosen],
        params={name: [params[number].get(name) for number, *_ in chosen] for name in sweep.spec.space},
        best=_records(told, sweep.direction),
    )


def thin(told: Sequence[Told], direction: Direction) -> list[Told]:
    """Return at most `MOST_POINTS` rows in their order: the best ones, and an even selection of the others."""
    if len(told) <= MOST_POINTS:
        return list(told)
    sign = 1 if direction == "min" else -1
    ranked = sorted((row for row in told if row[2] is not None), key=lambda row: sign * (row[2] or 0.0))
    kept = {row[0] for row in ranked[:_BEST_POINTS]}
    others = [row for row in told if row[0] not in kept]
    room = MOST_POINTS - len(kept)
    kept |= {others[at * len(others) // room][0] for at in range(room)}
    return [row for row in told if row[0] in kept]


def _records(told: Sequence[Told], direction: Direction) -> list[tuple[int, float]]:
    found: list[tuple[int, float]] = []
    for number, _, result, _ in told:
        if result is None:
            continue
        if not found or (result < found[-1][1] if direction == "min" else result > found[-1][1]):
            found.append((number, result))
    return found
