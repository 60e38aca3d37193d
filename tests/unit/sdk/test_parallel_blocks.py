"""Finding blocks and dealing them out."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from shoal.sdk.parallel.blocks import block_lists, partition, pipeline_blocks, size  # noqa: E402

pytestmark = pytest.mark.torch


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.layers = nn.ModuleList(Layer(8) for _ in range(4))
        self.head = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))


def test_the_largest_list_comes_first_and_lists_inside_blocks_do_not_count() -> None:
    model = Model()
    assert block_lists(model) == [list(model.layers), list(model.head)]


def test_a_pipeline_is_cut_at_the_largest_list_that_is_long_enough() -> None:
    model = Model()
    assert pipeline_blocks(model, 2) == list(model.layers)
    assert pipeline_blocks(model, 5) != list(model.layers)


def test_a_chain_of_unequal_layers_can_be_cut() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    assert pipeline_blocks(model, 3) == list(model)
    assert pipeline_blocks(model, 4) == []


def test_lists_of_lists_are_one_chain() -> None:
    pairs = nn.ModuleList(nn.ModuleList([nn.Linear(2, 2), nn.ReLU()]) for _ in range(3))
    assert pipeline_blocks(pairs, 4) == [module for pair in pairs for module in pair]


def test_one_block_used_several_times_cannot_be_cut() -> None:
    shared = nn.Linear(4, 4)
    assert pipeline_blocks(nn.Sequential(shared, shared, shared), 2) == []


def test_shared_parameters_are_counted_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert size(model) == 16


def test_equal_blocks_are_dealt_evenly() -> None:
    assert partition([1] * 12, 4) == [range(0, 3), range(3, 6), range(6, 9), range(9, 12)]


def test_the_last_stage_gets_the_fewer_blocks() -> None:
    assert partition([1] * 3, 2) == [range(0, 2), range(2, 3)]


def test_more_parts_than_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="2 blocks cannot be cut into 3"):
        partition([1, 1], 3)


@given(some.lists(some.integers(0, 50), min_size=1, max_size=8), some.integers(1, 8))
def test_no_other_cut_has_a_lighter_heaviest_part(weights: list[int], parts: int) -> None:
    if parts > len(weights):
        parts = len(weights)
    ranges = partition(weights, parts)
    assert [index for part in ranges for index in part] == list(range(len(weights)))
    assert all(len(part) for part in ranges)

    def heaviest(cuts: tuple[int, ...]) -> int:
        edges = [0, *cuts, len(weights)]
        return max(sum(weights[start:end]) for start, end in pairwise(edges))

    best = min(heaviest(cuts) for cuts in combinations(range(1, len(weights)), parts - 1))
    assert max(sum(weights[index] for index in part) for part in ranges) == best
