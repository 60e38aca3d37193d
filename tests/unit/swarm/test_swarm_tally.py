"""What a peer tells of itself: sums of the last finished round, until the next is."""

from __future__ import annotations

import math

from shoal.swarm.tally import Tally


def test_the_sums_of_a_round_are_told_once_it_is_over_and_stay_until_the_next_is():
    tally = Tally()
    for loss in (4.0, 2.0):
        tally.add(8)
        tally.note(loss)
    assert tally.told().get("samples", 0) == 0
    tally.close({"averaged": 0.5, "bytes_in": 10, "bytes_out": 20, "members": ["a", "b"]}, 1.5)
    tally.add(8)
    told = tally.told()
    assert (told["samples"], told["loss"], told["mini_steps"]) == (16, 6.0, 2)
    assert (told["averaged"], told["bytes_in"], told["bytes_out"], told["round_s"]) == (0.5, 10, 20, 1.5)
    assert told["total_samples"] == 24
    assert tally.samples == 8 and tally.mean_loss == 3.0


def test_a_round_alone_is_whole_and_bytes_add_up_over_rounds():
    tally = Tally()
    for receipt in (
        {"bytes_in": 1, "bytes_out": 2, "odd": ["x"], "refused": {"y": "not finite"}},
        None,
        {"bytes_in": 3},
    ):
        tally.add(1)
        tally.close(receipt, 0.0)
    assert tally.told()["averaged"] == 1.0
    assert (tally.told()["bytes_in"], tally.told()["bytes_out"]) == (4, 2)


def test_a_round_in_vain_tells_nothing_and_a_loss_that_is_no_number_leaves_the_last():
    tally = Tally()
    tally.add(5)
    tally.note(1.0)
    tally.drop()
    assert tally.samples == 0
    tally.note(2.0)
    tally.close(None, 0.0)
    tally.note(math.nan)
    tally.close(None, 0.0)
    assert tally.mean_loss == 2.0
