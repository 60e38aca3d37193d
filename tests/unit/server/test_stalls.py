"""The verdict on attempts that stand still: certain of a hang it ends them, and what may be slow it leaves alone."""

import pytest

from shoal.core.stacks import RankStack
from shoal.server.jobs.agent_commands import AgentCommands
from shoal.server.jobs.stalls import Stalls, limits, verdict

ALL_REDUCE = {
    "inside": "all_reduce",
    "at": "train.py:41",
    "waits": True,
    "frames": ["all_reduce (torch/distributed/distributed_c10d.py:2501)", "step (train.py:41)"],
}
BARRIER = {**ALL_REDUCE, "inside": "barrier", "at": "train.py:50"}
BACKWARD = {"inside": "backward", "at": "train.py:40", "waits": True, "frames": ["backward (torch/_tensor.py:1)"]}
LOADING = {"inside": "__getitem__", "at": "data.py:7", "frames": ["__getitem__ (data.py:7)"]}
STOPPED = {"note": "stopped by a signal (SIGSTOP), and cannot answer", "stopped": True}
UNSEEN = {"note": "asleep; its Python stack is not available"}


def ended(*ranks, own=None, default=3600.0, steps=True, until=7200, world=None, pause=None):
    """(when, why) an attempt quiet from 0 s on is ended, its ranks at these places (or where they say at a time)."""
    now = [0.0]
    stalls = Stalls(lambda: now[0])
    allowed = limits(own, default, pause)
    for at in range(30, until, 15):
        now[0] = float(at)
        if stalls.is_due("att", at):
            looks = [place(at) if callable(place) else place for place in ranks]
            stalls.note("att", [RankStack(rank=r, **{"cpu_s": 1.0, "moved": 0, **p}) for r, p in enumerate(looks)])
        if allowed is None:
            continue
        why = verdict(
            stalls.seen("att"), world_size=world or len(ranks), quiet_s=at, limits=allowed, reports_steps=steps
        )
        if why:
            return at, why
    return None


def test_a_rank_that_hangs_while_others_wait_for_it_is_ended_after_ten_minutes():
    assert ended(ALL_REDUCE, LOADING, ALL_REDUCE) == (
        600,
        "rank 1 made no progress for 10 min in __getitem__ at data.py:7 "
        "while ranks 0 and 2 waited in all_reduce, called at train.py:41",
    )


@pytest.mark.parametrize(
    ("pause_s", "after_s"), [(0.1, 120), (1.0, 120), (12.0, 120), (20.0, 210), (45.0, 450), (59.0, 600), (500.0, 600)]
)
def test_the_time_until_a_hang_is_proven_is_learned_from_the_pauses_of_the_attempt(pause_s, after_s):
    assert ended(ALL_REDUCE, LOADING, pause=pause_s)[0] == after_s
    assert ended(ALL_REDUCE, ALL_REDUCE, pause=pause_s)[0] == after_s
    assert ended(ALL_REDUCE, STOPPED, pause=pause_s)[0] == 60
    assert (
        ended(LOADING, LOADING, pause=pause_s)[0] == 3600
    )  # nothing is proven: an idle job is given as long as before
    assert ended(ALL_REDUCE, LOADING, pause=pause_s, own=90)[0] == 90


def test_a_pace_is_known_after_a_minute_of_signs_and_is_that_of_the_longest_pause():
    now = [0.0]
    commands = AgentCommands(lambda: now[0])
    for _ in range(200):
        now[0] += 1.0
        commands.reset("att")  # it is still being prepared
    assert commands.longest_pause_s("att") is None
    for number in range(60):
        now[0] += 30.0 if number == 7 else 0.5
        assert commands.longest_pause_s("att") is None
        commands.record_progress("att")
    assert commands.longest_pause_s("att") == 30.0
    now[0] += 300.0  # a pause that has not ended says nothing yet
    assert commands.longest_pause_s("att") == 30.0
    commands.excuse("att", 290.0)  # its machine stood still
    commands.record_progress("att")
    assert commands.longest_pause_s("att") == 30.0
    commands.keep_only([])
    assert commands.longest_pause_s("att") is None


def test_a_rank_stopped_by_a_signal_is_decided_within_a_minute():
    at, why = ended(ALL_REDUCE, STOPPED)
    assert at == 60
    assert why.startswith("rank 1 was stopped by a signal (SIGSTOP) for 1 min while rank 0 waited in all_reduce")


def test_gradients_averaged_in_a_backward_pass_are_waited_for_too():
    assert ended(BACKWARD, LOADING)[0] == 600


def test_a_rank_without_a_python_stack_counts_by_what_it_does():
    at, why = ended(ALL_REDUCE, UNSEEN)
    assert at == 600 and "rank 1 made no progress for 10 min (asleep; its Python stack is not available)" in why


def test_ranks_that_all_wait_in_collectives_are_a_deadlock():
    assert ended(ALL_REDUCE, BARRIER) == (
        600,
        "no rank made progress for 10 min: rank 0 waits in all_reduce, called at train.py:41; "
        "rank 1 waits in barrier, called at train.py:50",
    )


@pytest.mark.parametrize(
    "slow",
    [
        lambda at: {**LOADING, "cpu_s": at * 0.05},
        lambda at: {**LOADING, "moved": at * 10_000},
        lambda at: {**LOADING, "frames": [f"__getitem__ (data.py:{at})"]},
        {**LOADING, "cpu_s": None},
        lambda at: {**LOADING, "cpu_s": 1.0 + (at // 300)},
    ],
    ids=["it computes", "it reads", "its stack changes", "an old agent does not say", "a burst every five minutes"],
)
def test_a_rank_that_may_be_slow_is_waited_for(slow):
    assert ended(ALL_REDUCE, slow) is None


def test_ranks_that_use_the_processor_in_a_collective_are_no_deadlock():
    busy = [lambda at, place=place: {**place, "cpu_s": float(at)} for place in (ALL_REDUCE, ALL_REDUCE)]
    assert ended(*busy) is None


def test_nothing_is_decided_before_every_rank_was_seen():
    assert ended(ALL_REDUCE, LOADING, world=3) is None


def test_a_job_that_reports_steps_and_then_does_nothing_is_ended_after_an_hour_and_one_that_never_did_is_not():
    assert ended(LOADING) == (
        3600,
        "no line, metric or step for 1 h, and no rank does anything: rank 0 is in __getitem__ at data.py:7",
    )
    assert ended(LOADING, steps=False) is None
    assert ended(lambda at: {**LOADING, "cpu_s": float(at)}) is None


def test_an_own_limit_holds_whatever_the_ranks_do():
    busy = lambda at: {**LOADING, "cpu_s": float(at)}  # noqa: E731
    at, why = ended(busy, own=120, steps=False)
    assert (at, why) == (
        120,
        "no line, metric or step for 2 min (its stall timeout): rank 0 is in __getitem__ at data.py:7",
    )
    assert ended(ALL_REDUCE, LOADING, own=86_400)[0] == 600, "what is proven to hang is not kept for it"


@pytest.mark.parametrize("off", [{"own": 0}, {"default": 0.0}])
def test_limits_can_be_switched_off(off):
    assert ended(ALL_REDUCE, STOPPED, **off) is None


def test_progress_in_between_starts_it_all_again():
    stalls = Stalls(lambda: 0.0)
    stalls.note("att", [RankStack(rank=0, **LOADING)])
    stalls.forget("att")
    assert stalls.seen("att") == {}
    stalls.note("gone", [RankStack(rank=0, **LOADING)])
    stalls.keep_only({"att"})
    assert stalls.seen("gone") == {}
