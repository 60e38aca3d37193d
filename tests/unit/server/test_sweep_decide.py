"""Decisions about a sweep, on random histories of it."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.states import JobState
from shoal.core.sweeps import SweepState, TrialState
from shoal.server.sweeper.decide import GIVE_UP_AFTER, LiveTrial, Sight, next_actions

ENDS = {
    "done": {"job": JobState.SUCCEEDED},
    "failed": {"job": JobState.FAILED, "exit_code": 1, "reason": "broken"},
    "skipped": {"job": JobState.FAILED, "exit_code": 77, "reason": "exit code 77: skipped: too large"},
    "stopped": {"job": JobState.STOPPED, "reason": "stopped by anna"},
    "deleted": {"job": None},
}


@dataclass
class Model:
    """A sweep whose trials end as they are told to; what is decided is done at once."""

    total: int
    parallel: int
    is_informed: bool = False
    live: dict = field(default_factory=dict)
    ended: Counter = field(default_factory=Counter)
    given: list = field(default_factory=list)
    result: tuple = None
    stopping: bool = False

    def decide(self):
        while self.result is None:
            seen = Sight(
                total=self.total,
                parallel=self.parallel,
                given=len(self.given),
                live=tuple(self.live.values()),
                ended=self.ended,
                is_stopping=self.stopping,
                is_informed=self.is_informed,
            )
            actions = next_actions(seen)
            assert next_actions(seen) == actions
            if not actions.any:
                return
            self.do(actions)

    def do(self, actions):
        for number, (state, _) in actions.ended.items():
            del self.live[number]
            self.ended[state] += 1
        for number in [*actions.prune, *actions.stop]:
            reason = actions.prune.get(number)
            self.live[number] = LiveTrial(number=number, job=JobState.STOPPED, pruned=reason, reason="stopped")
        for number in actions.submit:
            self.given.append(number)
            self.live[number] = LiveTrial(number=number, job=JobState.QUEUED)
        if actions.end:
            assert not self.live
            self.result = actions.end


@given(
    st.integers(1, 30), st.integers(1, 8), st.booleans(),
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from([*ENDS, "late", "lost"])), max_size=80), st.integers(0, 90),
)  # fmt: skip
def test_every_trial_is_begun_once_in_order_and_never_too_many_at_once(total, parallel, informed, moves, stop_at):
    model = Model(total, parallel, informed)
    model.decide()
    for at, (index, how) in enumerate(moves):
        active = [t for t in model.live.values() if t.is_active]
        assert len(active) <= parallel
        assert model.given == list(range(len(model.given)))
        if model.result is not None:
            break
        if at == stop_at:
            model.stopping, before = True, len(model.given)
            model.decide()
            # One whose last reports have not come yet is waited for.
            stopped = None if any(not t.is_told for t in model.live.values()) else (SweepState.STOPPED, None)
            assert (len(model.given), model.result) == (before, stopped)
            break
        number = list(model.live)[index % len(model.live)]
        if how == "late":
            model.live[number] = LiveTrial(number=number, job=JobState.SUCCEEDED, is_told=False)
        elif how == "lost":
            model.live[number] = LiveTrial(number=number, job=JobState.RUNNING, lost="pruned: behind")
        else:
            model.live[number] = LiveTrial(number=number, **ENDS[how])
        model.decide()
    else:
        for number in list(model.live) if model.result is None else ():
            model.live[number] = LiveTrial(number=number, job=JobState.SUCCEEDED)
            model.decide()
    if model.result is not None and model.result[0] is SweepState.FINISHED:
        assert sum(model.ended.values()) == total
    if model.result is None:
        assert model.live, "a sweep without trials to wait for has ended"


@pytest.mark.parametrize("parallel", [1, 2, 5])
def test_failures_alone_end_a_sweep_early_and_a_single_success_does_not(parallel):
    for how_many_good in (0, 1):
        model, at = Model(20, parallel), 0
        model.decide()
        while model.result is None:
            for number in list(model.live):
                is_good = at < how_many_good
                model.live[number] = LiveTrial(number=number, **ENDS["done" if is_good else "failed"])
                at += 1
            model.decide()
        state, reason = model.result
        if how_many_good:
            assert (state, len(model.given)) == (SweepState.FINISHED, 20)
        else:
            assert state is SweepState.FAILED and reason.endswith("started: broken")
            assert GIVE_UP_AFTER <= len(model.given) < GIVE_UP_AFTER + parallel


def test_a_search_that_learns_waits_for_the_last_reports_and_a_grid_does_not():
    late = (LiveTrial(number=0, job=JobState.SUCCEEDED, is_told=False),)
    assert not next_actions(Sight(total=2, parallel=1, given=1, live=late, is_informed=True)).any
    assert next_actions(Sight(total=2, parallel=1, given=1, live=late)).submit == range(1, 2)


def test_a_trial_that_is_stopping_is_not_told_again():
    trial = LiveTrial(number=0, job=JobState.RUNNING, is_stopping=True, lost="pruned: behind")
    assert not next_actions(Sight(total=1, parallel=1, given=1, live=(trial,))).any
    assert not next_actions(Sight(total=1, parallel=1, given=1, live=(trial,), is_stopping=True)).any


def test_those_to_run_again_come_before_new_ones():
    actions = next_actions(Sight(total=9, parallel=3, given=5, again=(1, 4), ended={TrialState.DONE: 3}))
    assert (actions.again, actions.submit, actions.end) == ([1, 4], range(5, 6), None)


def test_what_cannot_be_begun_ends_the_sweep_once_the_others_have():
    running = (LiveTrial(number=0, job=JobState.RUNNING),)
    assert not next_actions(Sight(total=5, parallel=2, given=1, live=running, broken="no values")).any
    done = next_actions(Sight(total=5, parallel=2, given=1, ended={TrialState.DONE: 1}, broken="no values"))
    assert done.end == (SweepState.FAILED, "no values")
