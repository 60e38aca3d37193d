"""Learning rates by samples seen; the linear one in the figures measured of TopSpin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.train.schedule import Constant, Cosine, Linear, Stepwise


def test_linear_gives_the_reference_values():
    schedule = Linear(60, 0.1, 1e-5)
    assert [schedule(seen) for seen in (3, 6, 9, 12, 15)] == pytest.approx(
        [0.5, 1.0, 0.944445, 0.88889, 0.833335], abs=5e-7
    )
    assert schedule(60) == schedule(90) == pytest.approx(1e-5)


def test_stepwise_falls_after_whole_epochs():
    schedule = Stepwise(100, 0.1, 2)
    assert [schedule(seen) for seen in (0, 199, 200, 399, 400)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])


@given(st.integers(1, 10_000), st.floats(0, 1), st.floats(0, 1), st.integers(0, 20_000))
def test_no_schedule_leaves_its_bounds(target, warmup, ending, seen):
    for schedule in (Linear(target, warmup, ending), Cosine(target, warmup, ending), Constant(target, warmup)):
        assert -1e-9 <= schedule(seen) <= 1 + 1e-9
    assert Cosine(target, 0.0, ending)(target) == pytest.approx(ending)
    assert Constant(target, 0.0)(seen) == 1.0
