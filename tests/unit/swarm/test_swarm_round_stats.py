"""Statistics that a peer publishes: sums of the last finished round, until the next is finished."""

from __future__ import annotations

import math

from shoal.swarm.round_stats import RoundStats


def test_the_sums_of_a_round_are_told_once_it_is_over_and_stay_until_the_next_is():
    stats = RoundStats()
    for loss in (4.0, 2.0):
        stats.add(8)
        stats.note(loss)
    assert stats.published().get("samples", 0) == 0
    stats.close({"averaged": 0.5, "bytes_in": 10, "bytes_out": 20, "members": ["a", "b"]}, 1.5)
    stats.add(8)
    told = stats.published()
    assert (told["samples"], told["loss"], told["mini_steps"]) == (16, 6.0, 2)
    assert (told["averaged"], told["bytes_in"], told["bytes_out"], told["round_s"]) == (0.5, 10, 20, 1.5)
    assert told["total_samples"] == 24
    assert stats.samples == 8 and stats.mean_loss == 3.0


def test_a_round_alone_is_whole_and_bytes_add_up_over_rounds():
    stats = RoundStats()
    for receipt in (
        {"bytes_in": 1, "bytes_out": 2, "odd": ["x"], "refused": {"y": "not finite"}},
        None,
        {"bytes_in": 3},
    ):
        stats.add(1)
        stats.close(receipt, 0.0)
    assert stats.published()["averaged"] == 1.0
    assert (stats.published()["bytes_in"], stats.published()["bytes_out"]) == (4, 2)


def test_a_round_in_vain_tells_nothing_and_a_loss_that_is_no_number_leaves_the_last():
    stats = RoundStats()
    stats.add(5)
    stats.note(1.0)
    stats.drop()
    assert stats.samples == 0
    stats.note(2.0)
    stats.close(None, 0.0)
    stats.note(math.nan)
    stats.close(None, 0.0)
    assert stats.mean_loss == 2.0
