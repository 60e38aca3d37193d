"""A trainer fed by training data of ours: stopped anywhere, it goes on as if it had not been."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shoal.train import Params, Trainer  # noqa: E402
from shoal.train.data import Records, Small, Variable, write_records  # noqa: E402

SIZE = 30
LENGTHS = [1 + n * 7 % 10 for n in range(SIZE)]


def noisy(n):
    """A sample that draws: features and what is to be found from them."""
    n = int(n)
    return torch.tensor([n % 3, n % 5, 1.0]) + 0.1 * torch.rand(3), torch.tensor([float(n % 3 - n % 5)])


class Fed(Trainer):
    directory = kind = stop_at = None

    def training_data(self):
        options = {"seed": 3, "decode": noisy}
        if self.kind == "records":
            path = self.directory.parent / "samples.bin"
            write_records(path, range(SIZE), encode=lambda n: str(n).encode())
            return Records(path, self.params.batch_size, **options)
        if self.kind == "variable":
            return Variable(list(range(SIZE)), {"<=3": 6, "<=10": 4}, length=LENGTHS, **options)
        return Small(list(range(SIZE)), self.params.batch_size, **options)

    def train_batch(self, batch):
        x, y = batch
        return (self.model(x) - y).pow(2).mean()

    def on_step(self, figures):
        if self.state.steps == self.stop_at:
            self.run.stop("by the test")

    def run_options(self):
        return super().run_options() | {"dir": self.directory}


def fit(directory, kind, stop_at=None):
    torch.manual_seed(0)
    params = Params(batch_size=4, accumulate=2, lr=0.05, epochs=3, true_gradient=True)
    trainer = Fed(params, torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)))
    trainer.directory, trainer.kind, trainer.stop_at = directory, kind, stop_at
    return trainer, trainer.fit()


@pytest.mark.parametrize("kind", ["small", "records", "variable"])
def test_stopped_and_gone_on_with_it_is_the_same_training(tmp_path, kind):
    whole, outcome = fit(tmp_path / "whole", kind)
    assert outcome.reason == "finished" and outcome.seen >= 3 * SIZE
    _, outcome = fit(tmp_path / "cut", kind, stop_at=5)
    assert outcome.reason == "stopped" and outcome.steps < whole.state.steps
    again, outcome = fit(tmp_path / "cut", kind)
    assert outcome.reason == "finished"
    assert list(again.state.losses) == list(whole.state.losses)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])


def test_an_epoch_is_as_long_as_the_data_says(tmp_path):
    trainer, _ = fit(tmp_path / "run", "small")
    assert trainer.target_samples() == 3 * SIZE
