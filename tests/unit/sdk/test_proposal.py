"""Meshes that `shoal.plan` proposes: they fit, they are not larger than needed, and they come with reasons."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import shoal  # noqa: E402
from shoal.core.errors import InvalidSpec, UsageError  # noqa: E402
from shoal.sdk.parallel.plan import read_plan  # noqa: E402
from shoal.sdk.parallel.proposal import Proposal, read_figures  # noqa: E402

pytestmark = pytest.mark.torch


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = nn.Linear(width, 4 * width), nn.Linear(width, 8 * width)


class Decoder(nn.Module):
    def __init__(self, layers: int, width: int, vocabulary: int = 32_000):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))


def decoder(layers: int, width: int) -> nn.Module:
    with shoal.empty_model():
        return Decoder(layers, width)


@pytest.fixture(scope="module")
def seven() -> nn.Module:
    """About 7 billion parameters, which take no memory."""
    return decoder(32, 4240)


def propose(model: nn.Module, devices: int, **more: Any) -> Proposal:
    found = shoal.plan(model, devices, **{"memory": "80GB", **more})
    assert math.prod(found.mesh.values()) == devices
    read_plan("auto", found.mesh, devices)
    return found


def test_the_sizes_of_a_model_are_read_without_its_memory(seven: nn.Module) -> None:
    figures = read_figures(seven)
    assert figures.params == figures.trained == sum(p.numel() for p in seven.parameters())
    assert (figures.layers, figures.width, figures.vocabulary) == (32, 4240, 32_000)


def test_a_small_model_gets_copies_only() -> None:
    found = propose(decoder(4, 256), 8, tokens=1024)
    assert (found.mesh, found.activation_checkpointing) == ({"ddp": 8}, "none")
    assert "fits on one device" in str(found)


def test_a_large_model_is_sharded_inside_machines_if_the_link_between_them_is_slow(seven: nn.Module) -> None:
    found = propose(seven, 16, per_node=8, tokens=2048, mb_s=1000)
    assert found.mesh["ddp"] == 2 and found.mesh["fsdp"] <= 8
    assert found.memory <= 0.9 * 80e9


def test_what_one_machine_cannot_hold_is_sharded_over_all(seven: nn.Module) -> None:
    found = propose(seven, 16, per_node=2, memory="12GB")
    assert math.prod(size for axis, size in found.mesh.items() if axis != "ddp") == 16


def test_long_sequences_are_computed_again_or_divided(seven: nn.Module) -> None:
    short, long = propose(seven, 8, tokens=512), propose(seven, 8, tokens=60_000)
    assert short.activation_checkpointing == "none" and "cp" not in short.mesh
    assert long.activation_checkpointing != "none" or "cp" in long.mesh


def test_more_memory_never_needs_a_dearer_plan(seven: nn.Module) -> None:
    for tokens in (0, 2048, 16_384):
        small, large = (propose(seven, 16, per_node=8, tokens=tokens, memory=size) for size in ("40GB", "640GB"))
        assert large.mesh.get("fsdp", 1) <= small.mesh.get("fsdp", 1)


def test_an_unmeasured_link_is_said_with_the_command_that_measures_it(seven: nn.Module) -> None:
    assert "shoal pool check" in str(propose(seven, 16, per_node=8))
    assert "shoal pool check" not in str(propose(seven, 16, per_node=8, mb_s=2900))


def test_the_options_are_those_of_init(seven: nn.Module) -> None:
    found = propose(seven, 8)
    assert set(found.options) == {"mesh", "activation_checkpointing"}
    assert str(found).startswith("shoal.init(mesh={")


def test_what_does_not_fit_is_refused_with_what_it_would_need(seven: nn.Module) -> None:
    with pytest.raises(UsageError, match=r"each would need at least \d+\.\d GB of 16.0 GB"):
        propose(seven, 2, memory="16GB")


def test_devices_that_do_not_fill_the_machines_are_refused(seven: nn.Module) -> None:
    with pytest.raises(InvalidSpec, match="12 devices cannot be 8 on each machine"):
        propose(seven, 12, per_node=8)
