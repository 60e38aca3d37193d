"""Moments at which the Trainer reads numbers from a device: after the backward pass is queued, never by waiting for all its work."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shoal.sdk import values  # noqa: E402
from shoal.train import Model, Params, Trainer  # noqa: E402
from shoal.train.batch import Reading, Result  # noqa: E402
from shoal.train.bug import NonFiniteLoss  # noqa: E402

pytestmark = pytest.mark.torch

LOG: list[str] = []
X = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))


class OnDevice(torch.Tensor):  # type: ignore[misc]
    """Number that claims to be on a device. Reading it directly is a wait for everything that is queued there."""

    @property
    def device(self) -> Any:  # type: ignore[override]
        return torch.device("cuda", 0)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.item, torch.Tensor.__float__, torch.Tensor.__bool__):
            LOG.append("wait for the device")
        if func is torch.Tensor.backward:
            LOG.append("backward")
        return super().__torch_function__(func, types, args, kwargs or {})


class Event:
    def synchronize(self) -> None:
        LOG.append("read")


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    LOG.clear()

    def copy_later(numbers: dict[str, Any]) -> Any:
        if not any(isinstance(value, OnDevice) for value in numbers.values()):
            return real(numbers)
        LOG.append(f"copy {len(numbers)}")
        return {
            k: v.as_subclass(torch.Tensor) if isinstance(v, torch.Tensor) else v for k, v in numbers.items()
        }, Event()

    real = values._copy_later
    monkeypatch.setattr(values, "_copy_later", copy_later)


class Net(Model):
    def __init__(self, params: Any):
        super().__init__(params)
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, x: Any) -> Any:
        return self.layer(x).pow(2).mean()


class Fit(Trainer):
    directory: Any
    on_device = True
    poisoned = -1

    def train_batch(self, batch: Any) -> Any:
        loss = self.model(batch[0])
        if self.state.steps == self.poisoned:
            loss = loss * float("nan")
        loss = loss.as_subclass(OnDevice) if self.on_device else loss
        return {"loss": loss, "figures": {"twice": 2 * loss.detach(), "plain": 3.0}}

    def training_data(self) -> Any:
        return torch.utils.data.TensorDataset(X)

    def run_options(self) -> dict[str, Any]:
        return super().run_options() | {"dir": self.directory, "device": "cpu"}


def fit(directory: Any, *, poisoned: int = -1, on_device: bool = True, **given: Any) -> Any:
    params = Params(**{"batch_size": 4, "epochs": 1, "seed": 1, "lr": 0.1, **given})
    trainer = Fit(params, Net(params))
    trainer.directory, trainer.on_device, trainer.poisoned = directory, on_device, poisoned
    trainer.fit()
    return trainer


def test_the_loss_is_read_when_the_backward_pass_is_queued(tmp_path: Any) -> None:
    fit(tmp_path)
    assert LOG == ["copy 2", "backward", "read"] * 3


def test_each_mini_batch_of_a_step_is_read_after_its_own_backward_pass(tmp_path: Any) -> None:
    fit(tmp_path, accumulate=3)
    assert LOG == ["copy 2", "backward", "read"] * 3


def test_results_are_those_of_a_loss_that_is_read_at_once(tmp_path: Any) -> None:
    there, here = (
        fit(tmp_path / "there", accumulate=2, epochs=2),
        fit(tmp_path / "here", on_device=False, accumulate=2, epochs=2),
    )
    assert list(there.state.losses) == list(here.state.losses)
    assert all(torch.equal(a, b) for a, b in zip(there.model.parameters(), here.model.parameters(), strict=True))
    lines = [
        [
            json.loads(line)["v"]
            for line in (tmp_path / place / "spool/rank-0.jsonl").read_text().splitlines()
            if json.loads(line)["k"] == "s"
        ]
        for place in ("there", "here")
    ]
    assert [{k: v[k] for k in ("loss", "twice", "plain")} for v in lines[0]] == [
        {k: v[k] for k in ("loss", "twice", "plain")} for v in lines[1]
    ]


def test_a_loss_that_is_not_finite_leaves_the_same_capsule_as_one_that_is_read_at_once(tmp_path: Any) -> None:
    found = []
    for on_device in (True, False):
        directory = tmp_path / str(on_device)
        with pytest.raises(NonFiniteLoss, match="step 2"):
            fit(directory, poisoned=1, on_device=on_device)
        capsule = next((directory / "checkpoints" / "bug").iterdir())
        about = json.loads((capsule / "capsule.json").read_text())
        assert about["non_finite"] == [] and about["problems"] == []
        found.append([torch.load(capsule / name, weights_only=True) for name in ("model.pt", "batch.pt", "rng.pt")])
    (model, batch, rng), (other_model, other_batch, other_rng) = found
    assert all(torch.equal(model[name], other_model[name]) for name in other_model)
    assert torch.equal(batch[0], other_batch[0]) and torch.equal(rng["torch"], other_rng["torch"])


def test_anomalies_are_looked_for_with_the_loss_read_first(tmp_path: Any) -> None:
    with pytest.raises(NonFiniteLoss):
        fit(tmp_path, poisoned=0, detect_anomaly=True)
    assert "backward" not in LOG


def test_a_loss_that_is_sharded_over_workers_is_read_at_once() -> None:
    class Sharded(OnDevice):
        full_tensor = None

    loss = torch.tensor(3.0).as_subclass(Sharded)
    reading = Reading(Result(loss, None, {}))
    assert not reading.is_late and reading.loss == 3.0


def test_numbers_of_several_devices_are_complete_when_each_of_them_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []

    class Of:
        def __init__(self, number: int):
            self.number = number

        def query(self) -> bool:
            return self.number == 0

        def synchronize(self) -> None:
            waited.append(self.number)

    events = values._Events([Of(0), Of(1)])
    assert not events.query()
    events.synchronize()
    assert waited == [0, 1]
