"""State of one sweep in memory: read once from the database, then updated with the changes since. Sweeper thread only."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import Row, bindparam, select
from sqlalchemy.orm import Session

from shoal.core.states import JobState, NodeState
from shoal.core.sweeps import Direction, Params, SweepSpec, SweepState, TrialState
from shoal.server.db import in_parts
from shoal.server.jobs.service import Checked
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.sources import Source
from shoal.server.models.sweeps import Sweep, Trial
from shoal.server.sweeper.decide import LiveTrial, Sight, Verdict
from shoal.server.sweeps import reports as sweep_reports
from shoal.server.sweeps.reports import Reports
from shoal.tune.compare import board_for, loss_text
from shoal.tune.curve import Curve
from shoal.tune.prune import RungResults
from shoal.tune.search import Searcher, Tried

COUNTS = (TrialState.DONE, TrialState.REUSED, TrialState.PRUNED, TrialState.STOPPED, TrialState.RUNNING)
"""States of trials whose result may be the best of the sweep."""
_DRAIN_S = 20.0
"""Seconds to wait for the last reports of an agent after the end of its job was first seen. Measured from when this server
saw it, because no agent could deliver anything while the server was down."""
_UNDELIVERED = (
    select(Attempt.id)
    .join(Node, Node.attempt_id == Attempt.id)
    .where(Attempt.job_id == Job.id, Job.ended_at.is_not(None))
    .where(Node.final.is_(False), Node.state == NodeState.EXITED.value)
    .exists()
)
"""Condition: the job has ended, and its agents still have reports to send."""
_JOB = (Job.id, Job.state, Job.exit_code, Job.reason, Job.stop_requested_at, Job.metrics_cursor, Job.started_at,
        Job.ended_at, _UNDELIVERED.label("undelivered"))  # fmt: skip
_LOOK = select(*_JOB).where(Job.id.in_(bindparam("ids", expanding=True)))


@dataclass(slots=True)
class Running:
    """A trial whose job waits or runs, or has ended while the trial has no final state yet."""

    number: int
    params: Params
    job_id: str | None
    reports: Reports
    pruned: str | None = None
    lost: str | None = None
    job: Row[Any] | None = None
    """Its job's row as last read."""
    is_new: bool = False
    """True if its job was just queued and has not been read yet."""
    is_told: bool = False
    ended_at: float | None = None
    """Monotonic time at which the end of its job was first seen."""
    is_stored: bool = True
    """True if its row has the newest result."""

    def seen(self) -> LiveTrial:
        job = self.job
        if self.is_new:
            return LiveTrial(number=self.number, job=JobState.QUEUED)
        if job is None:
            return LiveTrial(number=self.number, job=None)
        return LiveTrial(
            number=self.number,
            job=JobState(job.state),
            is_told=self.is_told,
            is_stopping=job.stop_requested_at is not None,
            exit_code=job.exit_code,
            reason=job.reason,
            pruned=self.pruned,
            lost=self.lost,
        )

    @property
    def seconds(self) -> float | None:
        if self.job is None or self.job.started_at is None or self.job.ended_at is None:
            return None
        length: timedelta = self.job.ended_at - self.job.started_at
        return max(0.0, length.total_seconds())


@dataclass(slots=True)
class SweepMemory:
    """State of one running sweep."""

    id: str
    workspace_id: str
    created_by: str
    spec: SweepSpec
    checked: Checked
    searcher: Searcher
    total: int
    forgiven: int
    revision: int
    is_stopping: bool
    board: RungResults | None = None
    live: dict[int, Running] = field(default_factory=dict)
    by_job: dict[str, int] = field(default_factory=dict)
    ended: Counter[TrialState] = field(default_factory=Counter)
    again: dict[int, Params] = field(default_factory=dict)
    given: int = 0
    first_failure: tuple[int, str] | None = None
    best: tuple[float, int] | None = None
    """Best result of the ended trials, and the number of that trial."""
    unsaid: set[int] = field(default_factory=set)
    """Running trials whose newest results have not been passed to the searcher."""
    broken: str | None = None
    """Why no values can be chosen for another trial; None if they can."""
    stored_at: float = 0.0
    """Monotonic time at which its rows were last written."""

    @property
    def direction(self) -> Direction:
        return self.spec.direction

    def sight(self) -> Sight:
        return Sight(
            total=self.total,
            parallel=self.spec.parallel,
            given=self.given,
            live=tuple(trial.seen() for trial in self.live.values()),
            ended=self.ended,
            again=tuple(self.again),
            forgiven=self.forgiven,
            first_failure=self.first_failure[1] if self.first_failure else None,
            is_stopping=self.is_stopping,
            is_informed=self.spec.search not in ("grid", "random"),
            broken=self.broken,
        )

    @property
    def unsettled(self) -> set[str]:
        """Jobs that have ended and whose last reports have not arrived yet."""
        return {t.job_id for t in self.live.values() if t.job_id and not t.is_told and _has_ended(t.job)}

    @property
    def is_stored(self) -> bool:
        return all(trial.is_stored for trial in self.live.values())

    def refresh(self, session: Session, job_ids: Iterable[str]) -> None:
        """Read the state of these jobs and their reports since the last read."""
        trials = [self.live[self.by_job[j]] for j in job_ids if j in self.by_job]
        rows: dict[str, Row[Any]] = {}
        for ids in in_parts(trial.job_id for trial in trials):
            rows |= {row.id: row for row in session.execute(_LOOK, {"ids": ids})}
        news, now = {}, time.monotonic()
        for trial in trials:
            trial.job = row = rows.get(trial.job_id or "")
            trial.is_new = False
            if _has_ended(row):
                trial.ended_at = now if trial.ended_at is None else trial.ended_at
            waits = row is not None and row.undelivered and now - (trial.ended_at or now) < _DRAIN_S
            trial.is_told = row is None or (_has_ended(row) and not waits)
            if row is not None and row.metrics_cursor != trial.reports.cursor:
                news[row.id] = (trial.reports, row.metrics_cursor)
        if news:
            self._read_reports(session, news)

    def _read_reports(self, session: Session, news: dict[str, tuple[Reports, int]]) -> None:
        before = {job_id: (reports.curve, len(reports.curve)) for job_id, (reports, _) in news.items()}
        sweep_reports.update(session, self.spec.metric, news)
        for job_id, (reports, _) in news.items():
            curve, count = before[job_id]
            if reports.curve is curve and len(curve) == count:
                continue  # its new metrics are others
            trial = self.live[self.by_job[job_id]]
            trial.is_stored = False
            self.unsaid.add(trial.number)
            if self.board is not None and reports.curve is not curve:
                self.board.forget(trial.number)
            self.compare(trial.number, reports.curve)
        if self.board is not None:
            for trial in self.live.values():
                loss = self.board.loss(trial.number)
                trial.lost = loss_text(loss, self.spec) if loss else None

    def compare(self, number: int, curve: Curve) -> None:
        if self.board is not None:
            self.board.add(number, curve)

    def begin(self, trial: Running) -> None:
        """Add a trial whose job is queued or running."""
        self.live[trial.number] = trial
        if trial.job_id is not None:
            self.by_job[trial.job_id] = trial.number
        self.given = max(self.given, trial.number + 1)
        self.again.pop(trial.number, None)
        self.unsaid.add(trial.number)

    def record_end(self, number: int, params: Params, state: TrialState, reason: str | None, curve: Curve) -> None:
        """Record the final state of a trial and pass its result to the searcher."""
        trial = self.live.pop(number, None)
        if trial is not None and trial.job_id is not None:
            self.by_job.pop(trial.job_id, None)
        self.given = max(self.given, number + 1)
        self.ended[state] += 1
        if state is TrialState.FAILED and (self.first_failure is None or number < self.first_failure[0]):
            self.first_failure = (number, reason or "no reason is known")
        if state in COUNTS and curve.best is not None:
            self.best = self._better(self.best, (curve.best, number))
        self.unsaid.discard(number)
        self.searcher.tell(Tried(number, params, values=curve, state=state))

    def propose(self, number: int) -> Params | None:
        """Return values for a trial, chosen with the newest results of the others; None if there are no more."""
        for other in self.unsaid & self.live.keys():
            self._update_searcher(self.live[other])
        self.unsaid.clear()
        params = self.searcher.ask(number)
        if params is not None:
            self.searcher.tell(Tried(number, params, state=TrialState.RUNNING))
        return params

    def _update_searcher(self, trial: Running) -> None:
        tried = Tried(trial.number, trial.params, values=trial.reports.curve, state=TrialState.RUNNING)
        self.searcher.tell(tried)

    def best_number(self, ended: Mapping[int, Verdict]) -> int | None:
        """Return the number of the trial with the best result, including running trials and those that end now."""
        best = self.best
        for number, trial in self.live.items():
            counts = number not in ended or ended[number][0] in COUNTS
            if counts and trial.reports.curve.best is not None:
                best = self._better(best, (trial.reports.curve.best, trial.number))
        return best[1] if best else None

    def _better(self, one: tuple[float, int] | None, other: tuple[float, int]) -> tuple[float, int]:
        sign = 1 if self.direction == "min" else -1
        return min((one or other), other, key=lambda found: (sign * found[0], found[1]))


def load(session: Session, sweep_id: str) -> SweepMemory | None:
    """Read a sweep from the database; None if it was deleted or has ended."""
    row = session.get(Sweep, sweep_id)
    if row is None or row.state != SweepState.RUNNING:
        return None
    spec = SweepSpec.model_validate(row.spec)
    memory = SweepMemory(
        id=row.id,
        workspace_id=row.workspace_id,
        created_by=row.created_by,
        spec=spec,
        checked=Checked(session.get_one(Source, row.source_id), row.inputs),
        searcher=Searcher(spec),
        total=row.total,
        forgiven=row.forgiven,
        revision=row.revision,
        is_stopping=row.stop_requested_at is not None,
        board=board_for(spec),
    )
    columns = (
        Trial.number,
        Trial.params,
        Trial.state,
        Trial.job_id,
        Trial.reason,
        Trial.again,
        Trial.curve,
        Trial.reports,
    )
    for trial in session.execute(select(*columns).where(Trial.sweep_id == row.id).order_by(Trial.number)):
        _remember(memory, trial)
    memory.refresh(session, list(memory.by_job))
    return memory


def _remember(memory: SweepMemory, row: Row[Any]) -> None:
    state = TrialState(row.state)
    if state is TrialState.RUNNING:
        memory.begin(Running(row.number, row.params, row.job_id, Reports(memory.direction), pruned=row.reason))
        return
    if row.again:
        memory.again[row.number] = row.params
        memory.given = max(memory.given, row.number + 1)
        return
    curve = Curve(memory.direction, row.curve, row.reports)
    memory.compare(row.number, curve)
    memory.record_end(row.number, row.params, state, row.reason, curve)


def _has_ended(job: Row[Any] | None) -> bool:
    return job is not None and job.ended_at is not None
