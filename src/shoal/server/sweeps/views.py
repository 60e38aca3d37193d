"""Conversion of sweeps and trials to the views of the API. A list takes the same few queries however long it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, func, select, tuple_
from sqlalchemy.orm import Session

from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.core.sweeps import SweepSpec, SweepState, SweepSummary, SweepView, TrialState, TrialView
from shoal.server.billing import service as billing
from shoal.server.models.jobs import Job
from shoal.server.models.sweeps import Sweep, Trial
from shoal.server.sweeps.importance import importance

_TRIAL = (Trial.number, Trial.params, Trial.state, Trial.result, Trial.reports, Trial.step, Trial.job_name, Trial.job_id,
          Trial.reason, Trial.seconds, Trial.created_at, Trial.ended_at, Job.name, Job.state.label("job_state"),
          Job.started_at, Job.ended_at.label("job_ended_at"))  # fmt: skip
_RAN = (TrialState.DONE.value, TrialState.PRUNED.value)
"""States of trials whose duration is used to estimate that of others."""


@dataclass(slots=True)
class _Known:
    """Numbers read for one sweep."""

    counts: dict[TrialState, int] = field(default_factory=dict)
    best: TrialView | None = None
    mean_s: float | None = None
    running_s: list[float] = field(default_factory=list)
    """Seconds that each running trial has run so far."""
    waiting: int = 0


def trials_query() -> Select[Any]:
    return select(*_TRIAL).outerjoin(Job, Job.id == Trial.job_id)


def trial_view(row: Row[Any]) -> TrialView:
    return TrialView(
        number=row.number,
        params=row.params,
        state=TrialState(row.state),
        result=row.result,
        reports=row.reports,
        step=row.step,
        job=row.name or row.job_name,
        job_id=row.job_id,
        job_status=JobState(row.job_state) if row.job_state else None,
        reason=row.reason,
        seconds=row.seconds if row.ended_at else _since(row.started_at, row.job_ended_at),
        created_at=row.created_at,
        ended_at=row.ended_at,
    )


def summaries(session: Session, sweeps: Sequence[Sweep]) -> list[SweepSummary]:
    known = _about(session, sweeps)
    return [SweepSummary(**_summary(sweep, known[sweep.id])) for sweep in sweeps]


def view(session: Session, sweep: Sweep) -> SweepView:
    spec = SweepSpec.model_validate(sweep.spec)
    own = select(Trial.job_id).where(Trial.sweep_id == sweep.id, Trial.state != TrialState.REUSED.value)
    ids = [job_id for job_id in session.scalars(own) if job_id is not None]
    slot_seconds, cost = billing.slot_seconds_and_cost(session, ids)
    return SweepView(
        **_summary(sweep, _about(session, [sweep])[sweep.id]),
        spec=spec,
        importance=importance(session, sweep, spec),
        slot_seconds=slot_seconds,
        cost=cost,
    )


def _summary(sweep: Sweep, known: _Known) -> dict[str, Any]:
    return {
        "id": sweep.id,
        "name": sweep.name,
        "status": SweepState(sweep.state),
        "stop_requested": sweep.stop_requested_at is not None,
        "search": sweep.spec["search"],
        "metric": sweep.spec["metric"],
        "direction": sweep.spec["direction"],
        "trials": sweep.total,
        "counts": known.counts,
        "best": known.best,
        "reason": sweep.reason,
        "eta_s": _eta_s(sweep, known) if sweep.state == SweepState.RUNNING else None,
        "created_by": sweep.created_by,
        "created_at": sweep.created_at,
        "ended_at": sweep.ended_at,
    }


def _about(session: Session, sweeps: Sequence[Sweep]) -> dict[str, _Known]:
    known: dict[str, _Known] = defaultdict(_Known)
    mine = Trial.sweep_id.in_([s.id for s in sweeps])
    counted = select(Trial.sweep_id, Trial.state, func.count()).where(mine).group_by(Trial.sweep_id, Trial.state)
    for sweep_id, state, count in session.execute(counted):
        known[sweep_id].counts[TrialState(state)] = count
    open_ = Trial.sweep_id.in_([s.id for s in sweeps if s.state == SweepState.RUNNING])
    lengths = select(Trial.sweep_id, func.avg(Trial.seconds)).where(open_, Trial.state.in_(_RAN))
    for sweep_id, mean_s in session.execute(lengths.group_by(Trial.sweep_id)):
        known[sweep_id].mean_s = mean_s
    live = select(Trial.sweep_id, Job.state, Job.started_at).join(Job, Job.id == Trial.job_id)
    for sweep_id, state, started in session.execute(live.where(open_, Trial.state == TrialState.RUNNING.value)):
        if state == JobState.RUNNING:
            known[sweep_id].running_s.append(_since(started, None) or 0.0)
        elif not JobState(state).is_terminal:
            known[sweep_id].waiting += 1
    best = tuple_(Trial.sweep_id, Trial.number).in_([(s.id, s.best) for s in sweeps if s.best is not None])
    for row in session.execute(trials_query().add_columns(Trial.sweep_id).where(best)):
        known[row.sweep_id].best = trial_view(row)
    return known


def _eta_s(sweep: Sweep, known: _Known) -> float | None:
    """Estimate the seconds until the sweep ends, from the mean duration of ended trials and the number running now."""
    if known.mean_s is None or not known.running_s:
        return None
    left = known.waiting + max(0, sweep.total - sum(known.counts.values()))
    under_way = sum(max(0.0, known.mean_s - ran) for ran in known.running_s)
    return (left * known.mean_s + under_way) / len(known.running_s)


def _since(start: datetime | None, end: datetime | None) -> float | None:
    return None if start is None else max(0.0, ((end or utcnow()) - start).total_seconds())
