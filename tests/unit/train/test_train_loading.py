"""Data-loading processes: only for data that is seen to take time, and never a change of the results."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shoal.train import Model, Params, Trainer, loading  # noqa: E402
from shoal.train.loading import WORKERS, WORTH_S, seconds_to_load, workers_for  # noqa: E402

pytestmark = pytest.mark.torch

SIZE = 20


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Data(torch.utils.data.Dataset):  # type: ignore[misc]
    """Samples that take so long by the clock, the first one longer; each is the process that made it and a random number."""

    def __init__(self, seconds: float = 0.0, first: float = 0.0):
        self.clock, self.seconds, self.first, self.calls = Clock(), seconds, first, 0

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        self.clock.now += self.seconds + (0 if self.calls else self.first)
        self.calls += 1
        return float(index), torch.rand(3), os.getpid()


def test_the_time_of_a_batch_is_measured_elsewhere_and_nothing_is_left_of_it_here() -> None:
    dataset, before = Data(0.01, first=5.0), torch.get_rng_state()
    assert seconds_to_load(dataset, 4, dataset.clock) == pytest.approx(5.04), "after the limit, the first one counts"
    dataset = Data(0.01, first=0.5)
    assert seconds_to_load(dataset, 4, dataset.clock) == pytest.approx(0.04)
    assert dataset.calls == 0 and torch.equal(torch.get_rng_state(), before)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("seconds", "workers"), [(WORTH_S / 2, 0), (WORTH_S * 2, WORKERS)])
def test_processes_load_what_takes_longer_than_they_cost(monkeypatch: Any, seconds: float, workers: int) -> None:
    monkeypatch.setattr(loading, "seconds_to_load", lambda dataset, batch_size: seconds)
    assert workers_for(Data(), 4) == workers


def test_data_that_cannot_be_measured_is_loaded_here(monkeypatch: Any) -> None:
    class Broken(Data):
        def __getitem__(self, index: int) -> Any:
            raise ValueError("no such sample")

    assert workers_for(Broken(), 4) == 0 and workers_for([], 4) == 0
    monkeypatch.setattr(loading, "seconds_to_load", lambda *_: pytest.fail("tensors need not be measured"))
    assert workers_for(torch.utils.data.TensorDataset(torch.ones(3)), 1) == 0


class Net(Model):
    def __init__(self, params: Any):
        super().__init__(params)
        self.layer = torch.nn.Linear(3, 1)


class Fit(Trainer):
    directory: Any

    def training_data(self) -> Any:
        self.pids: set[int] = set()
        return Data()

    def train_batch(self, batch: Any) -> Any:
        index, noise, pids = batch
        self.pids |= set(pids.tolist())
        return (self.model.layer(noise)[:, 0] - index).pow(2).mean()

    def run_options(self) -> dict[str, Any]:
        return super().run_options() | {"dir": self.directory}


def fit(directory: Any, **given: Any) -> Any:
    params = Params(**{"batch_size": 4, "epochs": 2, "seed": 1, **given})
    trainer = Fit(params, Net(params))
    trainer.directory = directory
    trainer.fit()
    return trainer


def test_the_trainer_starts_processes_only_where_loading_takes_time(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(loading, "seconds_to_load", lambda *_: WORTH_S / 2)
    here = fit(tmp_path / "here")
    monkeypatch.setattr(loading, "seconds_to_load", lambda *_: WORTH_S * 2)
    there = fit(tmp_path / "there")
    assert here.pids == {os.getpid()}
    assert len(there.pids) == WORKERS and os.getpid() not in there.pids
    assert list(here.state.losses) == list(there.state.losses)
    assert torch.equal(here.model.layer.weight, there.model.layer.weight)


def test_a_number_that_is_given_is_used_without_measuring(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(loading, "seconds_to_load", lambda *_: pytest.fail("measured"))
    assert fit(tmp_path / "none", num_workers=0).pids == {os.getpid()}
    assert os.getpid() not in fit(tmp_path / "one", num_workers=1).pids
