"""A trial's curve reads as the running best of its values, however it was built."""

import math
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from shoal.tune.curve import Curve

VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=40)


def best_so_far(values, direction):
    best = min if direction == "min" else max
    finite = [v if math.isfinite(v) else None for v in values]
    return [
        math.nan if v is None else v
        for v in accumulate(finite, lambda a, b: a if b is None else b if a is None else best(a, b))
    ]


@given(VALUES, st.sampled_from(["min", "max"]), st.integers(0, 40))
def test_it_reads_as_the_best_so_far_after_each_report(values, direction, cut):
    curve = Curve(direction)
    curve.add(values[:cut])
    curve.add(values[cut:])
    wanted = best_so_far(values, direction)
    assert len(curve) == len(values)
    assert [None if math.isnan(v) else v for v in curve] == [None if math.isnan(v) else v for v in wanted]
    again = Curve(direction, curve.improvements, len(curve))
    assert again.improvements == curve.improvements and repr(list(again)) == repr(list(curve))
    assert curve.best == next((v for v in reversed(wanted) if not math.isnan(v)), None)
    assert repr(curve[1:3]) == repr(list(curve)[1:3])
