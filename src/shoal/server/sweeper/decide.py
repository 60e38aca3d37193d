"""What is to be done about a sweep. A pure decision on what is known of it, so that it is the same after a restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.core.states import JobState
from shoal.core.sweeps import SweepState, TrialState

GIVE_UP_AFTER = 3
"""Failed trials without a single one that ran well: more of them would fail as well."""
SKIPPED = 77
"""Exit code by which a script says that its trial should not be run."""
_GOOD = (TrialState.DONE, TrialState.PRUNED, TrialState.REUSED)

Verdict = tuple[TrialState, str | None]
"""How a trial ended, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTrial:
    """One that has not been settled."""

    number: int
    job: JobState | None
    """None once somebody has deleted it."""
    is_told: bool = True
    """All it had to report has come."""
    is_stopping: bool = False
    exit_code: int | None = None
    reason: str | None = None
    """Of its job."""
    pruned: str | None = None
    """Why it was asked to end early, if it was."""
    lost: str | None = None
    """Why it should be."""

    @property
    def is_active(self) -> bool:
        return self.job is not None and not self.job.is_terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A sweep as it is now."""

    total: int
    parallel: int
    given: int
    """The numbers below this have been given their values."""
    live: tuple[LiveTrial, ...] = ()
    ended: Mapping[TrialState, int] = field(default_factory=dict)
    """How many ended how, but for those that are to run again."""
    again: tuple[int, ...] = ()
    """Trials that have ended and are to run again."""
    forgiven: int = 0
    """Failed ones that a person has gone on from."""
    first_failure: str | None = None
    is_stopping: bool = False
    is_informed: bool = False
    """What to try next follows from results, so that they are waited for."""
    broken: str | None = None
    """Why no further trial can be begun."""


@dataclass(slots=True, kw_only=True)
class Actions:
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
        """So many of each; the rest is decided anew."""
        return Actions(
            ended=self.ended,
            prune=dict(list(self.prune.items())[:count]),
            stop=self.stop[:count],
            again=self.again[:count],
            submit=self.submit[:count],
            end=self.end,
        )


def next_actions(seen: Sight) -> Actions:
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
        return SweepState.FAILED, f"{failed} trials failed and none ran well, so no more are begun: {first}"
    if failed and failed == sum(counts.values()):
        all_ = f"all {failed} trials" if failed > 1 else "its only trial"
        return SweepState.FAILED, f"{all_} failed: {first}"
    return SweepState.FINISHED, None
