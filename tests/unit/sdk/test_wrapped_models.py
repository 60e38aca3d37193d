"""Models that are compiled, quantised or spread over devices: their names in checkpoints, and where they stay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import shoal  # noqa: E402
from shoal.core.errors import Refused, UsageError  # noqa: E402
from shoal.sdk.parallel.ddp import DataParallel  # noqa: E402
from shoal.sdk.parallel.fsdp import ShardedParallel  # noqa: E402
from shoal.sdk.parallel.names import plain_names  # noqa: E402
from shoal.sdk.parallel.none import NoParallel  # noqa: E402
from shoal.sdk.parallel.plan import Plan  # noqa: E402
from shoal.sdk.saving import layout  # noqa: E402
from shoal.sdk.saving.archive import write_archive  # noqa: E402
from shoal.train.model import load_weights  # noqa: E402

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x)).sum()


def plain() -> Any:
    return Net()


def compiled() -> Any:
    return torch.compile(Net(), backend="eager")


def partly() -> Any:
    """Return a model of which only one block is compiled."""
    net = Net()
    net.second = torch.compile(net.second, backend="eager")  # type: ignore[assignment]
    return net


MAKERS = [plain, compiled, partly]


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def steps(directory: Any, make: Any, until: int, **options: Any) -> Any:
    """Train to the step `until` and save; return the weights by their plain names, and the step it began at."""
    run = shoal.init("t", dir=directory, seed=1, checkpoint_every_s=None, **options)
    model = make()
    model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    began = run.global_step
    while run.global_step < until:
        optimizer.zero_grad()
        model(torch.randn(5, 3)).backward()
        optimizer.step()
        run.step()
    run.checkpoint(wait=True)
    run.finish()
    return plain_names(model.state_dict()), began


def saved(directory: Any, step: int, name: str = "model.pt") -> Any:
    return torch.load(directory / "checkpoints" / layout.name_of(step) / name, weights_only=True)


@pytest.mark.parametrize("make", MAKERS)
def test_a_checkpoint_has_the_names_of_the_plain_model(tmp_path: Any, make: Any) -> None:
    steps(tmp_path, make, 2)
    Net().load_state_dict(saved(tmp_path, 2))


@pytest.mark.parametrize("then", MAKERS)
@pytest.mark.parametrize("first", MAKERS)
def test_a_training_resumes_with_and_without_compile(tmp_path: Any, first: Any, then: Any) -> None:
    expected, _ = steps(tmp_path / "whole", plain, 4)
    steps(tmp_path / "broken", first, 2)
    weights, began = steps(tmp_path / "broken", then, 4)
    assert began == 2 and weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.parametrize("then", MAKERS)
@pytest.mark.parametrize("make", [compiled, partly])
def test_checkpoints_with_the_names_of_the_compiled_model_are_still_read(tmp_path: Any, make: Any, then: Any) -> None:
    expected, _ = steps(tmp_path, make, 2)
    checkpoint = tmp_path / "checkpoints" / layout.name_of(2)
    weights, about = saved(tmp_path, 2), layout.about(checkpoint)
    names = {name.replace("_orig_mod.", ""): name for name in make().state_dict()}
    (checkpoint / "model.pt").unlink()
    old = write_archive(checkpoint / "model.pt", {names[name]: value for name, value in weights.items()})
    layout.write_about(checkpoint, about | {"files": about["files"] | {"model.pt": old}})
    assert any("_orig_mod" in name for name in saved(tmp_path, 2))

    found, began = steps(tmp_path, then, 2)
    assert began == 2 and all(torch.equal(found[name], expected[name]) for name in expected)
    model = then()
    load_weights(model, checkpoint)
    assert torch.equal(plain_names(model.state_dict())["first.weight"], expected["first.weight"])


def test_weights_of_another_model_are_still_refused(tmp_path: Any) -> None:
    steps(tmp_path, compiled, 1)
    with pytest.raises(Refused, match="third"):
        steps(tmp_path, lambda: nn.ModuleDict({"third": nn.Linear(1, 1)}), 2)
    run = shoal.sdk.start.current()
    assert run is not None
    run.finish(status="failed")


def test_names_that_would_become_equal_are_left_alone() -> None:
    same = {"a._orig_mod.w": 1, "a.w": 2}
    assert plain_names(same) == same


@pytest.mark.usefixtures("group")
def test_ddp_around_or_inside_of_a_compiled_model_saves_plain_names() -> None:
    way = DataParallel(CPU, 0, 1)
    around = way.wrap(compiled())
    inside = torch.compile(nn.parallel.DistributedDataParallel(Net()), backend="eager")
    assert way.wrap(inside) is inside
    way.sync_gradients(inside, False)
    assert not inside._orig_mod.require_backward_grad_sync
    for model in (around, inside):
        state = way.full_state(model, [])
        assert state is not None and state[0].keys() == Net().state_dict().keys()
        way.load(model, [], state[0], [])
        way.load(model, [], {f"_orig_mod.module.{name}": value for name, value in state[0].items()}, [])


@pytest.mark.usefixtures("group")
def test_a_sharded_model_reads_the_names_of_a_compiled_one() -> None:
    way = ShardedParallel(CPU, Plan(shards=1), 0)
    model = way.wrap(Net())
    way.load(model, [], compiled().state_dict(), [])
    state = way.full_state(model, [])
    assert state is not None and torch.equal(state[0]["first.weight"], Net().first.weight)


class Elsewhere(nn.Linear):
    """Model that refuses to be moved, as quantised ones and those on several devices do."""

    def to(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("`.to` is not supported for this model")


MARKS = [
    {"hf_device_map": {"first": 0, "second": 1}},
    {"hf_device_map": {"": "cpu"}},
    {"is_loaded_in_8bit": True},
    {"is_loaded_in_4bit": True},
    {"is_quantized": True},
]


def marked(marks: dict[str, Any]) -> Any:
    model = Elsewhere(2, 2)
    for name, value in marks.items():
        setattr(model, name, value)
    return model


@pytest.mark.parametrize("marks", MARKS, ids=str)
def test_a_model_that_is_placed_already_stays_on_its_devices(tmp_path: Any, marks: dict[str, Any]) -> None:
    model = marked(marks)
    run = shoal.init("t", dir=tmp_path, checkpoint_every_s=None)
    assert run.prepare(model) is model
    run.finish()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("marks", MARKS, ids=str)
def test_ddp_leaves_a_placed_model_where_it_is_and_names_no_device(marks: dict[str, Any]) -> None:
    way = DataParallel(torch.device("meta"), 0, 1)  # any device that is not the model's
    wrapped = way.wrap(marked(marks))
    assert isinstance(wrapped, nn.parallel.DistributedDataParallel)
    assert wrapped.device_ids is None and next(wrapped.parameters()).device == CPU


def test_an_unmarked_model_is_moved() -> None:
    assert next(NoParallel(torch.device("meta")).wrap(nn.Linear(2, 2)).parameters()).is_meta
    quantised_no_more = nn.Linear(2, 2)
    quantised_no_more.is_quantized = False  # type: ignore[assignment]
    assert next(NoParallel(torch.device("meta")).wrap(quantised_no_more).parameters()).is_meta


@pytest.mark.usefixtures("group")
def test_a_model_on_several_devices_is_not_sharded() -> None:
    way = ShardedParallel(CPU, Plan(shards=1), 0)
    with pytest.raises(UsageError, match="device_map"):
        way.wrap(marked({"hf_device_map": {"first": 0, "second": 1}}))
