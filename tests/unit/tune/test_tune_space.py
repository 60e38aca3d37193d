"""Parsing of search spaces, and the order in which a grid is enumerated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import UsageError
from shoal.core.sweeps import Between, Choice
from shoal.tune.space import arguments, grid, grid_point, grid_size, read_param


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("lr=5e-4,7e-4", Choice(values=[5e-4, 7e-4])),
        ("hidden=100:300", Between(low=100, high=300, whole=True)),
        ("hidden=100:300:log", Between(low=100, high=300, whole=True, log=True)),
        ("lr=1e-5:1e-2:log", Between(low=1e-5, high=1e-2, log=True)),
        ("p=0.0:1", Between(low=0, high=1)),
        ("kernels=[3,4],[3,4,5]", Choice(values=[[3, 4], [3, 4, 5]])),
        ("name=adam,sgd", Choice(values=["adam", "sgd"])),
        ("amp=true,false", Choice(values=[True, False])),
        ("url=s3://a/b", Choice(values=["s3://a/b"])),
        ("n=7", Choice(values=[7])),
    ],
)
def test_values_are_read_as_they_are_meant(text, axis):
    assert read_param(text) == (text.split("=")[0], axis)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr", "NAME=VALUES"),
        ("=3", "NAME=VALUES"),
        ("lr=", "NAME=VALUES"),
        ("lr=3:1", "smaller"),
        ("lr=0:1:log", "above 0"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_an_example(text, words):
    with pytest.raises(UsageError, match=words) as caught:
        read_param(text)
    assert "--param" in str(caught.value.hint)


def test_the_first_parameter_changes_slowest_and_groups_fastest():
    space = {
        "a": Choice(values=[1, 2]),
        "lr": Choice(values=[0.1, 0.2], group="g"),
        "b": Choice(values=["x", "y", "z"]),
        "warmup": Choice(values=[0, 5], group="g"),
    }
    found = [tuple(p.values()) for p in grid(space)]
    assert len(found) == grid_size(space) == 12
    assert found[:3] == [(1, 0.1, "x", 0), (1, 0.2, "x", 5), (1, 0.1, "y", 0)]
    assert found[6:8] == [(2, 0.1, "x", 0), (2, 0.2, "x", 5)]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_every_point_of_a_grid_comes_once(sizes):
    space = {f"p{i}": Choice(values=list(range(n))) for i, n in enumerate(sizes)}
    found = [tuple(grid_point(space, at).values()) for at in range(grid_size(space))]
    assert found == sorted(set(found))


def test_parameters_become_arguments_of_a_script():
    params = {"lr": 0.001, "name": "adam", "amp": True, "fast": False, "none": None, "kernels": [3, 4]}
    assert arguments(params) == ["--lr", "0.001", "--name", "adam", "--amp", "--kernels", "[3, 4]"]
