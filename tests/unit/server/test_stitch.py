"""Histories and charts, without a database."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.server.metrics.columns import Block, join, pack, points, summary
from shoal.server.metrics.intake import decode_lines, select_new
from shoal.server.metrics.stitch import END, cutoffs, due_merges, kept, thin

FLOATS = st.floats(width=64)
ROWS = st.lists(st.tuples(st.integers(-(2**52), 2**52), st.integers(0, 10**13), FLOATS), min_size=1, max_size=50)


@given(ROWS)
def test_columns_give_back_what_was_packed(rows):
    steps, millis, values = map(list, zip(*rows, strict=True))
    found = points(steps, [m / 1000 for m in millis], values, arrival=7)
    block = Block(pack(found), 7)
    assert block.steps.tolist() == steps
    assert np.allclose(block.times, found.times, atol=1e-3, rtol=0)
    assert block.values.tobytes() == np.array(values).tobytes()
    assert block.arrivals.tolist() == [7] * len(rows)
    whole = Block(pack(join([found, points([1], [1.0], [2.0], arrival=9)]), with_arrivals=True))
    assert whole.arrivals.tolist() == [7] * len(rows) + [9]


def test_strings_and_numbers_of_one_series_stay_what_they_are():
    found = points([1, 2, 3], [1.0, 2.0, 3.0], [0.5, "good", math.inf])
    assert Block(pack(found)).values.tolist() == [0.5, "good", math.inf]
    told = summary(found)
    assert (told.count, told.value_min, told.value_max) == (3, 0.5, 0.5)


def test_a_later_attempt_cuts_off_all_before_it():
    assert cutoffs({1: 1, 2: 50, 3: 40}) == {3: END, 2: 40, 1: 40}
    assert cutoffs({1: 1, 2: 50, 4: 60}) == {4: END, 2: 60, 1: 50}


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=6))
def test_a_history_has_every_step_once_in_order_and_of_the_newest_attempt_that_did_it(attempts):
    """Each attempt begins somewhere and logs some steps in a row."""
    parts = [np.arange(start, start + count) for start, count in attempts]
    bounds = cutoffs({n: start for n, (start, _) in enumerate(attempts)})
    mask = kept(parts, [bounds[n] for n in range(len(parts))])
    owner = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
    steps = np.concatenate(parts)[mask].tolist()
    assert steps == sorted(set(steps))
    for step, of in zip(steps, owner[mask].tolist(), strict=True):
        later = [n for n in range(of + 1, len(parts)) if attempts[n][0] <= step]
        assert not later, "a newer attempt began at or before this step"
    last = parts[-1].tolist()
    assert steps[-len(last) :] == last


@given(st.lists(st.one_of(FLOATS, st.just(math.nan)), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_ends_peaks_and_that_there_was_a_nan(values, count):
    column = np.array(values)
    picked = thin(column, count)
    assert picked.tolist() == sorted(set(picked.tolist()))
    assert picked[0] == 0 and picked[-1] == len(values) - 1
    left = column[picked]
    numbers = column[~np.isnan(column)]
    if len(numbers):
        assert numbers.min() in left and numbers.max() in left
    assert np.isnan(left).any() or not np.isnan(column[: len(column) - len(column) % 2]).any() or len(picked) > 1


def test_thinning_gives_about_as_many_as_asked_for():
    rng = np.random.default_rng(0)
    assert 800 <= len(thin(rng.random(1_000_000), 1000)) <= 1002


@given(st.lists(st.integers(1, 70_000), max_size=100))
def test_merges_are_of_neighbours_worth_it_and_never_too_large(counts):
    end_before = 0
    for start, end in due_merges(counts):
        assert start >= end_before and end - start >= 16
        assert sum(counts[start:end]) <= 1 << 16
        end_before = end


def test_merging_as_blocks_come_keeps_their_number_small():
    counts, written = [], 0
    for _ in range(20_000):
        counts.append(1)
        if len(counts) % 16 == 0:
            for start, end in reversed(due_merges(counts)):
                written += sum(counts[start:end])
                counts[start:end] = [sum(counts[start:end])]
    assert sum(counts) == 20_000
    assert len(counts) < 64
    assert written < 20 * 20_000


@pytest.mark.parametrize("text", ["{", '{"a":1} {"b":2}', '{"x":1},{"y":2}', "null", "[]", '"a', "1e999"])
def test_a_line_that_is_no_record_spoils_no_other(text):
    good = b'{"t":1,"k":"s","i":1,"v":{"loss":2}}'
    found = decode_lines(b"\n".join([good, text.encode(), good]))
    assert len(found) == 3
    assert select_new(found, {}).series == {("step", "loss"): ([1, 1], [1, 1], [2, 2])}


def test_lines_below_a_ranks_head_came_before():
    records = [{"t": 1, "k": "s", "i": i, "v": {"loss": i}, "rank": 0, "q": i} for i in range(5)]
    made = select_new(records, {0: 3})
    assert made.series["step", "loss"][0] == [3, 4]
    assert made.heads == {0: 5}
