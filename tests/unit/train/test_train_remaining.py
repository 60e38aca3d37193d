"""Estimated time left of a pool of tasks."""

import pytest

from shoal.train.modes import remaining_s


@pytest.mark.parametrize(
    ("waiting", "running", "slots", "seconds"),
    [
        ([], [], 2, 0),
        ([1, 1, 1, 1], [(1, 10.0)], 2, 20),  # one is about to end: two rounds of two
        ([], [(1, 4.0)], 8, 6),  # the other slots are of no use to it
        ([], [(1, 25.0)], 2, 0),  # nobody knows: it is late
        ([1], [], 8, 10),
        ([8, 8], [(8, 5.0)], 8, 25),
        ([2, 1], [(1, 5.0), (1, 0.0)], 4, 11.25),
    ],
)
def test_what_is_left_follows_from_slots_and_the_mean_length(waiting, running, slots, seconds):
    assert remaining_s(10.0, waiting=waiting, running=running, slots=slots) == pytest.approx(seconds)
