"""Pure decision on a sweep: which trials start, end, are pruned or stopped. It is the same after a restart of the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.core.states import JobState
from shoal.core.sweeps import SweepState, TrialState

GIVE_UP_AFTER = 3
"""Number of failed trials after which a sweep without any successful trial is given up."""
SKIPPED = 77
"""Exit code of a script that skips its trial."""
_GOOD = (TrialState.DONE, TrialState.PRUNED, TrialState.REUSED)

Verdict = tuple[TrialState, str | None]
"""Final state of a trial, and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTrial:
    """A trial that has no final state yet."""

    number: int
    job: JobState | None
    """State of its job; None if the job was deleted."""
    is_told: bool = True
    """True once all reports of the trial have arrived."""
    is_stopping: bool = False
    exit_code: int | None = None
    reason: str | None = None
    """Reason for the state of its job."""
    pruned: str | None = None
    """Why it was asked to end early; None if it was not."""
    lost: str | None = None
    """Why it should be pruned; None if it should not."""

    @property
    def is_active(self) -> bool:
        return self.job is not None and not self.job.is_terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Current state of a sweep: the input of the decision."""

    total: int
    parallel: int
    given: int
    """Number of trials that have their values; trials are numbered from 0."""
    live: tuple[LiveTrial, ...] = ()
    ended: Mapping[TrialState, int] = field(default_factory=dict)
    """Final state → number of trials, without those that will run again."""
    again: tuple[int, ...] = ()
    """Trials that have ended and will run again."""
    forgiven: int = 0
    """Number of failed trials when a user last reran the sweep; they do not count towards giving up."""
    first_failure: str | None = None
    is_stopping: bool = False
    is_informed: bool = False
    """True if the search uses results, so that new trials wait for the reports of ended ones."""
    broken: str | None = None
    """Why no further trial can be started; None if one can."""


@dataclass(slots=True, kw_only=True)
class Actions:
    """Result of the decision: what to do with which trials, by number."""

    ended: dict[int, Verdict] = field(default_factory=dict)
    prune: dict[int, str] = field(default_factory=dict)
    stop: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    submit: range = range(0)
    end: tuple[SweepState, str | None] | None = None

    @property
    def any(self) -> bool:
        return bool(self.ended or self.prune or self.stop or self.again or self.submit or self.end)

    def first(self, count: int) -> Actions:
        """Return at most `count` actions of each kind; the rest is decided again in the next round."""
        return Actions(
            ended=self.ended,
            prune=dict(list(self.prune.items())[:count]),
            stop=self.stop[:count],
            again=self.again[:count],
            submit=self.submit[:count],
            end=self.end,
        )


def next_actions(seen: Sight) -> Actions:
    """Return what to do next for a sweep."""
    made = Actions(ended={t.number: _verdict(t) for t in seen.live if _is_over(t)})
    left = [t for t in seen.live if t.number not in made.ended]
    if seen.is_stopping:
        made.stop = [t.number for t in left if t.is_active and not t.is_stopping]
        made.end = None if left else (SweepState.STOPPED, None)
        return made
    made.prune = {t.number: t.lost for t in left if t.lost and t.is_active and not t.is_stopping}
    counts = Counter(seen.ended) + Counter(state for state, _ in made.ended.values())
    busy = sum(t.is_active or seen.is_informed for t in left)
    gives_up = seen.broken is not None or _gives_up(counts, seen.forgiven)
    room = 0 if gives_up else max(0, seen.parallel - busy)
    made.again = list(seen.again[:room])
    made.submit = range(seen.given, seen.given + min(room - len(made.again), seen.total - seen.given))
    if not (left or made.again or made.submit):
        made.end = _ending(seen, made, counts)
    return made


def _is_over(trial: LiveTrial) -> bool:
    return not trial.is_active and trial.is_told


def _verdict(trial: LiveTrial) -> Verdict:
    if trial.job is None:
        return TrialState.STOPPED, "its job was deleted"
    if trial.job is JobState.SUCCEEDED:
        return TrialState.DONE, None
    if trial.job is JobState.STOPPED:
        return (TrialState.PRUNED, trial.pruned) if trial.pruned else (TrialState.STOPPED, trial.reason)
    if trial.exit_code == SKIPPED:
        return TrialState.SKIPPED, (trial.reason or "").rpartition("skipped: ")[2] or None
    return TrialState.FAILED, trial.reason


def _gives_up(counts: Mapping[TrialState, int], forgiven: int) -> bool:
    failed = counts.get(TrialState.FAILED, 0)
    return failed - forgiven >= GIVE_UP_AFTER and not any(counts.get(state) for state in _GOOD)


def _ending(seen: Sight, made: Actions, counts: Mapping[TrialState, int]) -> tuple[SweepState, str | None]:
    failed = counts.get(TrialState.FAILED, 0)
    newly = min((n for n, (state, _) in made.ended.items() if state is TrialState.FAILED), default=None)
    first = seen.first_failure or (made.ended[newly][1] if newly is not None else None) or "no reason is known"
    if seen.broken is not None:
        return SweepState.FAILED, seen.broken
    if seen.given < seen.total or seen.again:
        return SweepState.FAILED, f"{failed} trials failed and none succeeded, so no more are started: {first}"
    if failed and failed == sum(counts.values()):
        all_ = f"all {failed} trials" if failed > 1 else "its only trial"
        return SweepState.FAILED, f"{all_} failed: {first}"
    return SweepState.FINISHED, None
