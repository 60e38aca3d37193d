"""Decisions about workers, from what is known of them."""

from __future__ import annotations

import pytest

from shoal.agent.node.end_reasons import Exit
from shoal.agent.workers.workers import FAILURE_GRACE_S, Action, Watch


def decide(watch: Watch, now: float, *, stop: float | None = None, fenced: bool = False) -> Action:
    return watch.next_action(now, stop_grace_s=stop, fenced=fenced)


def test_running_workers_are_left_alone() -> None:
    watch = Watch(2)
    assert decide(watch, 0.0) is Action.WAIT and watch.wait_s(0.0) is None and not watch.done


def test_all_that_end_well_end_the_watch() -> None:
    watch = Watch(2)
    watch.exits = [Exit(0, 0, 1.0), Exit(1, 0, 2.0)]
    assert watch.done and watch.complete and watch.failure is None


def test_a_stop_is_asked_for_first_and_enforced_after_its_grace() -> None:
    watch = Watch(1)
    assert decide(watch, 10.0, stop=5.0) is Action.TERMINATE
    assert decide(watch, 14.0, stop=5.0) is Action.WAIT and watch.wait_s(14.0) == 1.0
    assert decide(watch, 15.0, stop=5.0) is Action.KILL
    assert watch.done and watch.told


def test_a_fenced_attempt_is_killed_at_once() -> None:
    watch = Watch(1)
    assert decide(watch, 1.0, fenced=True) is Action.KILL and watch.told


def test_the_peers_of_a_killed_worker_are_ended_at_once_and_not_by_order() -> None:
    watch = Watch(2)
    watch.exits = [Exit(1, -9, 1.0)]
    assert decide(watch, 1.0) is Action.TERMINATE
    assert decide(watch, 1.0 + FAILURE_GRACE_S) is Action.KILL
    assert not watch.told and watch.failure is not None and watch.failure.local == 1


def test_a_plain_exit_waits_a_moment_for_the_death_that_may_have_caused_it() -> None:
    watch = Watch(2)
    watch.exits = [Exit(0, 1, 1.0)]
    assert decide(watch, 1.0) is Action.WAIT and watch.wait_s(1.0) == 0.2
    watch.exits.append(Exit(1, -9, 1.1))
    assert watch.failure is not None and watch.failure.local == 1


def test_a_worker_that_fails_before_the_stop_is_to_blame_for_itself() -> None:
    watch = Watch(2)
    watch.exits = [Exit(0, 1, 1.0)]
    decide(watch, 1.05, stop=5.0)
    assert not watch.told


def test_ending_in_time_after_a_stop_needs_no_kill() -> None:
    watch = Watch(1)
    decide(watch, 0.0, stop=5.0)
    watch.exits = [Exit(0, -15, 0.1)]
    assert watch.done and watch.killed_at is None and watch.failure is None


@pytest.mark.parametrize(("code", "lost"), [(0, False), (143, False), (130, False), (1, True), (-15, True), (-9, True)])
def test_a_worker_that_obeys_and_leaves_by_itself_is_not_lost(code: int, lost: bool) -> None:
    watch = Watch(1)
    assert decide(watch, 10.0, stop=5.0) is Action.TERMINATE
    watch.exits.append(Exit(0, code, 11.0))
    assert watch.lost_one is lost


def test_the_same_exit_without_our_signal_is_a_loss() -> None:
    watch = Watch(1)
    watch.exits.append(Exit(0, 143, 11.0))
    assert watch.lost_one
