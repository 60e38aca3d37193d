"""Ranks in lockstep, their threads interleaved at will: whatever the order, they stop at one and the same step."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sdk_memory_store import Store

from shoal.sdk.ranks.agree import ALONE, DO, PATIENCE_S, SKIP, Agreement, Plan


class Rank:
    """One rank: a step that advances with the others', and its agreement."""

    def __init__(self, store, rank, world):
        self.step, self.plans, self.saved, self.stopped_at, self.alone = 0, [], [], None, False
        self.agreement = Agreement(
            store, rank=rank, world_size=world, prefix="p/", arm=self.plans.append, step=lambda: self.step
        )

    @property
    def halted(self):
        """True at an armed step whose outcome is not known."""
        return any(p.step == self.step and p.outcome is None for p in self.plans)

    def act(self):
        for plan in [p for p in self.plans if p.step <= self.step and p.outcome is not None]:
            self.plans.remove(plan)
            if plan.outcome == DO and plan.step == self.step:
                self.saved.append(self.step)
                if plan.stop:
                    self.stopped_at = self.step
            elif plan.outcome == ALONE and plan.stop:
                self.stopped_at, self.alone = self.step, True


def simulate(chance, world, *, dead=frozenset(), asks=(0,), save=False, rounds=4000, rate=50.0, dies_at=0.0):
    """Random interleaving of training threads (tied within one step) and watch threads until all alive have stopped."""
    store, now = Store(), 0.0
    ranks = [Rank(store, r, world) for r in range(world)]
    if save:
        ranks[0].agreement.save_wanted = True
    for _ in range(rounds):
        now += 0.02
        alive = [r for i, r in enumerate(ranks) if i not in dead or now < dies_at]
        rank = chance.choice(alive)
        if chance.random() < 0.5:
            slowest = min(r.step for r in alive)
            if rank.stopped_at is None and not rank.halted and rank.step <= slowest:
                rank.step += 1
            rank.act()
        else:
            rank.agreement.turn(now, rate)
            rank.act()
        if now > 1.0:
            for asking in asks:
                ranks[asking].agreement.stop_wanted = ("SIGTERM", 143)
        if all(r.stopped_at is not None for r in alive) and now > dies_at:
            break
    return ranks


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5), st.booleans(), st.sampled_from([0.0, 5.0, 20.0]), st.data())
def test_all_ranks_save_and_stop_at_one_step_whatever_the_interleaving(seed, world, save, rate, data):
    asks = data.draw(st.sets(st.integers(0, world - 1), min_size=1))
    ranks = simulate(random.Random(seed), world, asks=asks, save=save, rate=rate)
    stops = {r.stopped_at for r in ranks}
    assert len(stops) == 1 and None not in stops
    assert len({tuple(r.saved) for r in ranks}) == 1, "every save is made by all ranks, at the same steps"
    assert ranks[0].saved[-1] == ranks[0].stopped_at
    assert not any(r.alone for r in ranks)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 4), st.data())
def test_with_a_dead_peer_the_others_still_stop(seed, world, data):
    dead = data.draw(st.sets(st.integers(0, world - 1), min_size=1, max_size=world - 1))
    alive = [r for r in range(world) if r not in dead]
    ranks = simulate(random.Random(seed), world, dead=dead, asks=alive)
    assert all(ranks[r].stopped_at is not None and ranks[r].alone for r in alive)
    assert all(not ranks[r].saved for r in alive), "a save takes everybody"


def test_a_rank_that_was_past_the_step_makes_all_of_them_try_a_later_one():
    store = Store()
    a, b = Rank(store, 0, 2), Rank(store, 1, 2)
    a.agreement.stop_wanted = ("SIGTERM", 143)
    a.agreement.turn(0.0, 0.0)
    (first,) = a.plans
    b.step = first.step + 1
    b.agreement.turn(0.1, 0.0)
    a.agreement.turn(0.2, 0.0)
    b.agreement.turn(0.3, 0.0)
    assert first.outcome == SKIP
    a.agreement.turn(0.4, 0.0)
    second = a.plans[-1]
    assert second is not first and second.step - a.step > first.step - 0
    b.step = a.step
    b.agreement.turn(0.5, 0.0)
    a.agreement.turn(0.6, 0.0)
    b.agreement.turn(0.7, 0.0)
    assert second.outcome == DO and b.plans[-1].outcome == DO
    assert (b.plans[-1].why, b.plans[-1].code) == ("SIGTERM", 143)


def test_proposals_are_as_far_ahead_as_the_votes_take():
    for rate, ahead in ((0.0, 2), (1.0, 2), (100.0, 150)):
        rank = Rank(Store(), 0, 2)
        rank.step, rank.agreement.stop_wanted = 10, ("x", 0)
        rank.agreement.turn(0.0, rate)
        assert rank.plans[0].step == 10 + ahead


def test_a_rank_without_an_answer_from_rank_0_waits_its_patience_and_not_longer():
    rank = Rank(Store(), 1, 2)
    rank.agreement.stop_wanted = ("SIGTERM", 143)
    rank.agreement.turn(0.0, 0.0)
    rank.agreement.turn(PATIENCE_S - 0.1, 0.0)
    assert rank.plans == []
    rank.agreement.turn(PATIENCE_S + 0.1, 0.0)
    assert [p.outcome for p in rank.plans] == [ALONE]


def test_a_save_whose_peer_is_gone_is_left_out():
    rank = Rank(Store(), 0, 2)
    rank.agreement.save_wanted = True
    rank.agreement.turn(0.0, 0.0)
    (plan,) = rank.plans
    rank.agreement.turn(PATIENCE_S + 0.1, 0.0)
    assert plan.outcome == SKIP


@pytest.mark.parametrize(("stop", "outcome"), [(True, ALONE), (False, SKIP)])
def test_a_plan_nobody_settles_does_not_hold_the_training_for_ever(stop, outcome):
    plan = Plan(step=1, stop=stop, why="", code=0)
    assert plan.wait(0.01) == outcome
    plan.decide(DO)
    assert plan.outcome == outcome, "once settled, for good"
