"""A resume keeps nothing of the checkpoint in memory but what the objects themselves hold."""

from __future__ import annotations

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import shoal  # noqa: E402
from shoal.core.errors import Refused  # noqa: E402
from shoal.sdk.saving import restore  # noqa: E402
from shoal.train.ema import Ema  # noqa: E402

pytestmark = pytest.mark.torch

SIDE = 128


def start(directory: Any, **options: Any) -> Any:
    return shoal.init("t", dir=directory, seed=1, checkpoint_every_s=None, **options)


def step(run: Any, model: Any, *optimizers: Any) -> None:
    model(torch.ones(2, SIDE)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    run.step()


def train(directory: Any) -> None:
    """Save a model with its optimizer and an average of its weights."""
    run = start(directory)
    model = nn.Linear(SIDE, SIDE)
    model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters()))
    run.prepare(Ema(model, 0.9))
    step(run, model, optimizer)
    run.checkpoint(wait=True)
    run.finish()


def held() -> int:
    """Return the bytes of all large tensors that are alive in this process."""
    gc.collect()
    found: dict[int, int] = {}
    for value in gc.get_objects():
        if type(value) in (torch.Tensor, nn.Parameter) and value.nbytes >= SIDE * SIDE * 4:
            found[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
    return sum(found.values())


def test_nothing_of_the_checkpoint_stays_in_memory(tmp_path: Any) -> None:
    train(tmp_path)
    before = held()
    run = start(tmp_path)
    model = nn.Linear(SIDE, SIDE)
    model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters()))
    ema = Ema(model, 0.9)
    run.prepare(ema)
    assert run.global_step == 1 and len(optimizer.state) == 2
    # Weights, two averages of AdamW, and the moving average.
    assert held() - before == 4 * SIDE * SIDE * 4
    run.finish()


def test_what_is_prepared_later_is_loaded_too(tmp_path: Any) -> None:
    def make() -> Any:
        torch.manual_seed(len(list(tmp_path.glob("**/step-*"))))
        first, second = nn.Linear(SIDE, SIDE), nn.Linear(SIDE, SIDE)
        return first, torch.optim.AdamW(first.parameters()), second, torch.optim.AdamW(second.parameters())

    run = start(tmp_path)
    first, one, second, two = run.prepare(*make())
    step(run, nn.Sequential(first, second), one, two)
    run.checkpoint(wait=True)
    run.finish()
    expected = [first.weight.clone(), second.weight.clone(), two.state[second.weight]["exp_avg"].clone()]

    run = start(tmp_path)
    first, one, second, two = make()
    assert not torch.equal(second.weight, expected[1])
    run.prepare(first)
    run.prepare(one)
    run.prepare(second, two)
    assert torch.equal(first.weight, expected[0]) and torch.equal(second.weight, expected[1])
    assert torch.equal(two.state[second.weight]["exp_avg"], expected[2])
    run.finish()


def test_a_model_prepared_after_the_checkpoint_is_gone_is_refused(tmp_path: Any) -> None:
    train(tmp_path)
    run = start(tmp_path)
    model = run.prepare(nn.Linear(SIDE, SIDE))
    for path in tmp_path.glob("checkpoints/step-*/*.pt"):
        path.unlink()
    with pytest.raises(Refused, match="before the first step"):
        run.prepare(torch.optim.AdamW(model.parameters()))
    run.finish(status="failed")


def test_files_are_read_one_at_a_time(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path)
    read: list[str] = []
    real = restore.read_file
    monkeypatch.setattr(restore, "read_file", lambda path, name: read.append(name) or real(path, name))
    run = start(tmp_path)
    run.prepare(nn.Linear(SIDE, SIDE))
    assert read == ["training.pt", "model.pt"]  # there is no optimizer yet
    run.finish()
