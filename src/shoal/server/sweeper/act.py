"""Execution of decisions on a sweep. Trials and their jobs are written in one transaction: a crash leaves both or none."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.orm import Session

from shoal.core.ids import new_id
from shoal.core.names import MAX_NAME
from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.core.sweeps import Params, SweepState, TrialState
from shoal.server.context import Context
from shoal.server.jobs import events
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Event, Job
from shoal.server.models.sweeps import Sweep, Trial
from shoal.server.notifications import Listener
from shoal.server.sweeper.decide import Actions
from shoal.server.sweeper.memory import Running, SweepMemory
from shoal.server.sweeps import reports as sweep_reports
from shoal.server.sweeps.reports import Reports
from shoal.tune.memo import trial_key
from shoal.tune.space import arguments

logger = logging.getLogger(__name__)
AT_ONCE = 200
"""Maximum number of trials started, pruned or stopped in one transaction, so that other writers need not wait long."""
_SAME = (
    select(Trial.key, Job.id, Job.name, Job.metrics_cursor)
    .join(Sweep, Sweep.id == Trial.sweep_id)
    .join(Job, Job.id == Trial.job_id)
    .where(Sweep.workspace_id == bindparam("workspace"), Trial.state == TrialState.DONE.value)
    .where(Trial.key.in_(bindparam("keys", expanding=True)))
    .order_by(Trial.created_at)
)


@dataclass(slots=True)
class New:
    """A trial that is about to be created, with its parameter values."""

    number: int
    params: Params
    key: str
    job_id: str | None = None
    job_name: str = ""
    earlier: Reports | None = None
    """Reports of an earlier job with the same code and values, so that the trial need not run; else None."""


@dataclass(slots=True)
class Done:
    """Jobs that a transaction has changed, and trials that it has started."""

    jobs: list[str] = field(default_factory=list)
    begun: list[Running] = field(default_factory=list)


def act(ctx: Context, memory: SweepMemory, actions: Actions, *, by: Listener | None = None) -> list[str] | None:
    """Execute actions in one transaction and update the memory; return the ids of jobs to read again.

    Return None if the memory is of no more use: the sweep ends with these actions, or a user has changed or deleted it
    meanwhile, in which case nothing is written.
    """
    made = _plan(ctx, memory, actions.submit)
    done = ctx.db.write(lambda session: _apply(session, memory, actions, made))
    if done is None:
        return None
    for number, (state, reason) in actions.ended.items():
        trial = memory.live[number]
        memory.record_end(number, trial.params, state, reason, trial.reports.curve)
    for number, trial in memory.live.items():
        trial.is_stored, trial.pruned = True, actions.prune.get(number, trial.pruned)
    for trial in done.begun:
        memory.begin(trial)
    for new in made:
        if new.earlier is not None:
            memory.compare(new.number, new.earlier.curve)
            memory.record_end(new.number, new.params, TrialState.REUSED, None, new.earlier.curve)
    for job_id in done.jobs:
        ctx.live.job_changed(job_id, schedule=True, by=by)
    ctx.live.sweep_changed(memory.id, by=by)
    if actions.end is not None:
        return None
    unseen = {trial.job_id for trial in done.begun if trial.is_new}
    return [job_id for job_id in done.jobs if job_id not in unseen]


def _plan(ctx: Context, memory: SweepMemory, numbers: Iterable[int]) -> list[New]:
    """Choose values for these trials, and find those that have been run before."""
    contents = {"": memory.checked.source.manifest_id} | {i["path"]: i["manifest_id"] for i in memory.checked.inputs}
    made: list[New] = []
    for number in numbers:
        if ctx.live.closing:
            break
        try:
            params = memory.propose(number)
        except Exception as error:  # raised by a search library: running trials must still be handled
            logger.exception("no values for trial %d of %s", number, memory.id)
            memory.broken = f"no values could be chosen for trial {number}: {error}"
            break
        if params is None:
            memory.total = number
            break
        made.append(New(number, params, trial_key(memory.spec.job, params, contents)))
    if made:
        with ctx.db.read() as session:
            _recall(session, memory, made)
    return made


def _recall(session: Session, memory: SweepMemory, made: list[New]) -> None:
    """Find the trials that were completed before in this workspace, and read the reports of their jobs."""
    wanted = {"workspace": memory.workspace_id, "keys": [new.key for new in made]}
    found = {row.key: row for row in session.execute(_SAME, wanted)}
    reports = {row.id: (Reports(memory.direction), row.metrics_cursor) for row in found.values()}
    if reports:
        sweep_reports.update(session, memory.spec.metric, reports)
    for new in made:
        if new.key in found and reports[found[new.key].id][0].curve.best is not None:
            row = found[new.key]
            new.job_id, new.job_name, new.earlier = row.id, row.name, reports[row.id][0]


def _apply(session: Session, memory: SweepMemory, actions: Actions, made: list[New]) -> Done | None:
    sweep = session.get(Sweep, memory.id)
    if sweep is None or sweep.state != SweepState.RUNNING or sweep.revision != memory.revision:
        return None
    done = Done()
    _store(session, memory, actions)
    for number, reason in actions.prune.items():
        _stop(session, memory, number, reason, done)
    for number in actions.stop:
        _stop(session, memory, number, sweep.reason or "its sweep was stopped", done)
    for number in actions.again:
        _begin_again(session, memory, sweep, number, done)
    _begin(session, memory, sweep, made, done)
    sweep.best, sweep.total = memory.best_number(actions.ended), memory.total
    if actions.end is not None:
        state, why = actions.end
        sweep.state, sweep.ended_at = state.value, utcnow()
        sweep.reason = why or (sweep.reason if state is SweepState.STOPPED else None)
    return done


def _store(session: Session, memory: SweepMemory, actions: Actions) -> None:
    """Write the current results and the final states of trials to their rows."""
    rows: list[dict[str, Any]] = []
    for number, trial in memory.live.items():
        verdict = actions.ended.get(number)
        if trial.is_stored and verdict is None and number not in actions.prune:
            continue
        curve = trial.reports.curve
        state, reason = verdict or (TrialState.RUNNING, actions.prune.get(number, trial.pruned))
        rows.append(
            {
                "sweep_id": memory.id,
                "number": number,
                "state": state.value,
                "reason": reason,
                "result": curve.best,
                "reports": len(curve),
                "step": trial.reports.step,
                "curve": curve.improvements,
                "seconds": trial.seconds,
                "ended_at": utcnow() if verdict else None,
            }
        )
    if rows:
        session.execute(update(Trial), rows)


def _stop(session: Session, memory: SweepMemory, number: int, reason: str, done: Done) -> None:
    job = session.get(Job, memory.live[number].job_id)
    if job is not None:
        jobs.request_stop(session, job, reason, JobState.STOPPED)
        done.jobs.append(job.id)


def _begin_again(session: Session, memory: SweepMemory, sweep: Sweep, number: int, done: Done) -> None:
    row = session.get_one(Trial, (memory.id, number))
    job = session.get(Job, row.job_id) if row.job_id else None
    if job is None:
        new = New(number, row.params, row.key)
        _queue(session, memory, sweep, [new])
        row.job_id, row.job_name = new.job_id, new.job_name
    elif job.state in (JobState.FAILED, JobState.STOPPED):
        jobs.reopen(session, job, f"trial {number} of sweep '{sweep.name}' runs again")
    row.state, row.again, row.reason, row.ended_at = TrialState.RUNNING.value, False, None, None
    done.jobs.append(row.job_id or "")
    done.begun.append(Running(number, row.params, row.job_id, Reports(memory.direction)))


def _begin(session: Session, memory: SweepMemory, sweep: Sweep, made: list[New], done: Done) -> None:
    if not made:
        return
    fresh = [new for new in made if new.earlier is None]
    _queue(session, memory, sweep, fresh)
    session.execute(insert(Trial), [_row(memory, new) for new in made])
    done.jobs += [new.job_id or "" for new in fresh]
    done.begun += [Running(n.number, n.params, n.job_id, Reports(memory.direction), is_new=True) for n in fresh]


def _queue(session: Session, memory: SweepMemory, sweep: Sweep, fresh: list[New]) -> None:
    """Queue jobs for these trials, and set the trials' job ids and names."""
    if not fresh:
        return
    names = {new.number: f"{sweep.name}-{new.number}" for new in fresh}
    taken = select(Job.name).where(Job.workspace_id == sweep.workspace_id, Job.name.in_(names.values()))
    others = set(session.scalars(taken))
    base = memory.spec.job.model_dump(mode="json") | {"batch": sweep.name}
    rows, first_events = [], []
    ids = sorted(new_id("job") for _ in fresh)  # jobs of one batch are queued in the order of their ids
    for new, job_id in zip(fresh, ids, strict=True):
        new.job_id, name = job_id, names[new.number]
        new.job_name = name if name not in others else f"{name[: MAX_NAME - 7]}-{job_id[-6:]}"
        env = {"SHOAL_PARAMS": json.dumps(new.params), "SHOAL_SWEEP": sweep.name, "SHOAL_TRIAL": str(new.number)}
        entry = [*base["entry"], *arguments(new.params)]
        spec = base | {"name": new.job_name, "entry": entry, "env": base["env"] | env}
        rows.append({"id": job_id} | jobs.row(sweep.workspace_id, sweep.created_by, spec, memory.checked))
        first_events.append(events.first(job_id, "queued", f"trial {new.number} of sweep '{sweep.name}'"))
    session.execute(insert(Job), rows)
    session.execute(insert(Event), first_events)


def _row(memory: SweepMemory, new: New) -> dict[str, Any]:
    earlier, now = new.earlier, utcnow()
    return {
        "sweep_id": memory.id,
        "number": new.number,
        "params": new.params,
        "key": new.key,
        "job_id": new.job_id,
        "job_name": new.job_name,
        "state": (TrialState.REUSED if earlier else TrialState.RUNNING).value,
        "reason": f"the same as job '{new.job_name}'" if earlier else None,
        "result": earlier.curve.best if earlier else None,
        "reports": len(earlier.curve) if earlier else 0,
        "step": earlier.step if earlier else None,
        "curve": earlier.curve.improvements if earlier else [],
        "created_at": now,
        "ended_at": now if earlier else None,
    }
