"""Workers that each train a model of their own are noticed while they train."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest

from shoal.sdk.separate_models import _OTHER_WAYS, STEPS, trains_alone, watch
from shoal.testing.extras import needs

pytestmark = needs("torch")


@pytest.fixture(autouse=True)
def no_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have imported hivemind, which connects workers in another way."""
    for name in _OTHER_WAYS:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    import torch

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    handle = watch(sys.modules["torch.optim.optimizer"])

    def steps(count: int) -> None:
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(count):
            weight.sum().backward()
            optimizer.step()

    yield steps
    handle.remove()


def test_two_workers_without_a_process_group_are_warned_of_once(train, capsys: pytest.CaptureFixture[str]) -> None:
    train(STEPS - 1)
    assert capsys.readouterr().err == ""
    train(5)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("[shoal] warning: world size 2, but every rank trains alone: ")
    assert "shoal instrument" in line


def test_only_the_first_rank_says_so(
    train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    train(5)
    assert capsys.readouterr().err == ""


def group(size: int | None) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: size is not None, get_world_size=lambda: size
    )


@pytest.mark.parametrize(
    ("world", "size", "alone"),
    [("2", None, True), ("2", 1, True), ("2", 2, False), ("8", 4, False), ("1", None, False), ("", None, False)],
)
def test_workers_are_alone_without_a_group_or_in_one_of_their_own(
    monkeypatch: pytest.MonkeyPatch, world: str, size: int | None, alone: bool
) -> None:
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setitem(sys.modules, "torch.distributed", group(size))
    assert bool(trains_alone()) is alone


def test_other_ways_to_connect_workers_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "torch.distributed", group(None))
    monkeypatch.setitem(sys.modules, "horovod", types.ModuleType("horovod"))
    assert not trains_alone()
