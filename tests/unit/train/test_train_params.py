"""Params: typed, checked as they are set, and every combination of their ranges in a fixed order."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import UsageError
from shoal.train import Params, Range


class Mine(Params):
    hidden: int = 128
    kernels: list[int] = [3, 4, 5]
    name: str = "x"


def test_defaults_are_each_ones_own():
    one, other = Mine(), Mine()
    one.kernels.append(9)
    assert other.kernels == [3, 4, 5] and Mine.kernels == [3, 4, 5]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("lr", "fast", "lr is 'fast' (str), and should be float"),
        ("hidden", 1.5, "hidden is 1.5 (float), and should be int"),
        ("hidden", True, "hidden is True (bool), and should be int"),
        ("kernels", [3, "4"], "kernels is [3, '4'] (list)"),
        ("amp", "fp8", "amp is 'fp8'"),
        ("hidden", Range([1, "2"]), "hidden is '2' (str)"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(field, value, words):
    with pytest.raises(UsageError) as caught:
        Mine(**{field: value})
    assert words in str(caught.value)
    mine = Mine()
    with pytest.raises(UsageError):
        setattr(mine, field, value)


def test_an_int_is_a_fine_float_and_none_fits_where_it_may():
    assert Mine(lr=1, clip_norm=None).lr == 1


def test_an_unknown_field_suggests_the_nearest():
    with pytest.raises(UsageError) as caught:
        Mine(hiden=3)
    assert "did you mean hidden?" in str(caught.value.hint)


def test_variants_are_products_first_field_slowest_and_groups_fastest():
    class Search(Params):
        a: int = 0
        b: str = ""

    params = Search(
        a=Range([1, 2]), b=Range(["x", "y", "z"]), lr=Range([0.1, 0.2], group="g"), warmup=Range([0.3, 0.4], group="g")
    )
    found = [(v.a, v.b, v.lr, v.warmup) for v in params.variants()]
    assert found == [(a, b, *g) for a in (1, 2) for b in "xyz" for g in ((0.1, 0.3), (0.2, 0.4))]
    assert not any(v.ranges for v in params.variants())


def test_without_ranges_there_is_one_variant():
    assert list(Mine().variants()) == [Mine()]


def test_ranges_of_a_group_must_be_of_equal_length():
    params = Mine(lr=Range([1.0, 2.0], group="g"), hidden=Range([1], group="g"))
    with pytest.raises(UsageError) as caught:
        list(params.variants())
    assert "lr has 2, hidden has 1" in str(caught.value)


def test_an_empty_range_is_refused():
    with pytest.raises(UsageError):
        Range([])


@given(st.integers(1, 100), st.lists(st.integers(), min_size=1, max_size=4), st.text(max_size=5))
def test_json_and_back_is_the_same(hidden, kernels, name):
    mine = Mine(hidden=hidden, kernels=kernels, name=name, lr=Range([0.1, 1.0], group="g"), train_files=("a", "b"))
    assert Mine.from_dict(json.loads(json.dumps(mine.to_dict()))) == mine


def test_all_problems_are_told_at_once():
    with pytest.raises(UsageError) as caught:
        Mine(warmup=2.0, batch_size=0).check()
    assert "exactly one of epochs and max_steps" in str(caught.value)
    assert "batch_size is 0" in str(caught.value) and "warmup is 2.0" in str(caught.value)
    Mine(epochs=1.5).check()
