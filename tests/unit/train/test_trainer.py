"""The loop on one worker: what it learns, when it evaluates, stops, saves and goes on."""

from __future__ import annotations

import json

import pytest

from shoal.core.errors import UsageError

torch = pytest.importorskip("torch")

from shoal.sdk.saving import layout  # noqa: E402
from shoal.train import Model, Params, Predictor, Range, Trainer  # noqa: E402
from shoal.train.bug import NonFiniteLoss  # noqa: E402
from shoal.train.state import MOST_FIGURES, State  # noqa: E402

SIZE = 40
X = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(1))
Y = X @ torch.tensor([[1.0], [-2.0], [0.5]])


class Line(Model):
    def __init__(self, params):
        super().__init__(params)
        self.layer = torch.nn.Linear(3, 1)
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x):
        return self.layer(self.drop(x))


class Fit(Trainer):
    directory = None
    resume = "auto"

    def train_batch(self, batch):
        x, y = batch
        loss = (self.model(x) - y).pow(2).mean()
        return {"loss": loss, "figures": {"double": 2 * float(loss.detach())}}

    def training_data(self):
        return torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(X, Y), batch_size=self.params.batch_size, shuffle=True
        )

    def evaluation_data(self):
        return torch.utils.data.TensorDataset(X, Y)

    def run_options(self):
        return super().run_options() | {"dir": self.directory, "resume": self.resume}


def small(**given):
    return Params(**{"batch_size": 8, "lr": 0.05, "epochs": 4, "seed": 5, "num_workers": 0, **given})


def fit(directory, kind=Fit, params=None, **given):
    params = params or small(**given)
    trainer = kind(params, Line(params))
    trainer.directory = directory
    return trainer, trainer.fit()


def recorded(directory, kind):
    lines = [json.loads(line) for f in sorted((directory / "spool").glob("*.jsonl*")) for line in f.open()]
    return [line for line in lines if line["k"] == kind]


def test_it_learns_and_tells(tmp_path):
    trainer, outcome = fit(tmp_path, epochs=20)
    assert outcome.reason == "finished"
    assert (outcome.steps, outcome.seen) == (100, 20 * SIZE)
    assert outcome.best < trainer.state.evaluations[0][1]["loss"] / 3
    assert len(trainer.state.evaluations) == 20
    steps = recorded(tmp_path, "s")
    assert steps[-1]["i"] == 100
    assert steps[0]["v"]["double"] == pytest.approx(2 * steps[0]["v"]["loss"])
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert any(name.endswith(".train.double.svg") for name in drawn), drawn


def test_figures_of_train_batch_are_kept_with_the_checkpoint_and_few_names_only():
    state = State()
    for step in range(3):
        state.seen += 8
        state.note_figures({"double": 2.0 * step} | {f"f{n}": 0.0 for n in range(100)})
    assert len(state.figures) == MOST_FIGURES and list(state.figures["double"]) == [(8, 0.0), (16, 2.0), (24, 4.0)]
    other = State()
    other.load_state_dict(state.state_dict())
    assert {name: list(points) for name, points in other.figures.items()} == {
        n: list(p) for n, p in state.figures.items()
    }
    earlier = {name: value for name, value in state.state_dict().items() if name != "figures"}
    other.load_state_dict(earlier)
    assert other.figures == {}


def test_the_learning_rate_is_that_of_the_samples_seen_after_the_step(tmp_path):
    rates = []

    class Watched(Fit):
        def on_step(self, figures):
            rates.append(self.optimizer.param_groups[0]["lr"] / 0.05)

    fit(tmp_path, Watched, epochs=1, warmup=0.4)
    assert rates == pytest.approx([0.5, 1.0, 2 / 3, 1 / 3, 1e-5], abs=1e-4)


def test_a_training_that_was_cut_goes_on_exactly(tmp_path):
    class Cut(Fit):
        def on_step(self, figures):
            if self.state.steps == 7:
                self.run.stop("cut by the test")

    whole, _ = fit(tmp_path / "whole", ema=0.9)
    _, outcome = fit(tmp_path / "cut", Cut, ema=0.9)
    assert outcome.reason == "stopped"
    assert outcome.steps < 20
    again, outcome = fit(tmp_path / "cut", ema=0.9)
    assert outcome.reason == "finished"
    assert list(again.state.losses) == list(whole.state.losses)
    assert again.state.evaluations == whole.state.evaluations
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])


def test_the_best_model_is_kept_beside_the_newest(tmp_path):
    class Worse(Fit):
        def evaluate(self):
            return [3.0, -1.0, 4.0, 5.0, 6.0, 7.0][len(self.state.evaluations)]

    _, outcome = fit(tmp_path, Worse, epochs=6, keep_models=2)
    assert outcome.best == -1.0
    kept = layout.saved_in(tmp_path / "checkpoints")
    assert [layout.step_of(path) for path in kept] == [30, 25, 10]
    assert layout.best_of(kept) == kept[2]
    predictor = Predictor.load(Line(small()), tmp_path)
    best = torch.load(kept[2] / "model.pt", weights_only=True)
    assert torch.equal(predictor.model.layer.weight, best["layer.weight"])
    assert torch.equal(predictor(X), predictor(X))


def test_patience_ends_a_training_that_gets_no_better(tmp_path):
    class Stuck(Fit):
        def evaluate(self):
            return {"error": 1.0, "accuracy": 0.5}

    trainer, outcome = fit(tmp_path, Stuck, epochs=50, patience=2)
    assert outcome.reason == "early_stop"
    assert len(trainer.state.evaluations) in (3, 4)


def test_an_iterator_counts_mini_batches_alike_and_with_the_true_gradient_samples(tmp_path):
    def weight_after(true_gradient):
        class One(Trainer):
            directory = tmp_path / str(true_gradient)

            def train_batch(self, batch):
                return (self.model.weight * batch).mean()

            def training_data(self):
                yield 0, torch.tensor([[1.0]])
                yield 0, torch.tensor([[2.0], [4.0], [6.0]])

            def run_options(self):
                return super().run_options() | {"dir": self.directory}

        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        params = small(
            epochs=1, train_samples=4, accumulate=2, lr=1.0, optimizer="SGD", weight_decay=0.0, clip_norm=None,
            decay="none", true_gradient=true_gradient,
        )  # fmt: skip
        trainer = One(params, model, torch.optim.SGD(model.parameters(), lr=1.0))
        outcome = trainer.fit()
        assert (outcome.reason, outcome.seen) == ("finished", 4)
        return float(model.weight)

    assert weight_after(False) == -2.5
    assert weight_after(True) == -3.25


def test_data_that_ends_too_soon_is_said(tmp_path):
    class Short(Fit):
        def training_data(self):
            return iter([(0, (X[:8], Y[:8]))])

    _, outcome = fit(tmp_path, Short, epochs=2, train_samples=SIZE)
    assert outcome.reason == "out_of_data"


def test_a_loss_that_is_not_a_number_fails_the_run_and_leaves_a_capsule(tmp_path):
    class Poisoned(Fit):
        def train_batch(self, batch):
            loss = super().train_batch(batch)["loss"]
            return loss * float("nan") if self.state.steps == 3 else loss

    with pytest.raises(NonFiniteLoss, match="step 4"):
        fit(tmp_path, Poisoned)
    assert [p.name for p in (tmp_path / "checkpoints" / "bug").iterdir()]
    assert recorded(tmp_path, "f")[-1]["status"] == "failed"
    assert fit(tmp_path)[1].reason == "finished"


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_mixed_precision_learns(tmp_path, amp):
    trainer, _ = fit(tmp_path, epochs=15, amp=amp, accumulate=2)
    assert trainer.state.evaluations[-1][1]["loss"] < trainer.state.evaluations[0][1]["loss"]


def test_training_begins_with_the_initial_model(tmp_path):
    first, _ = fit(tmp_path / "first", epochs=20)
    second, _ = fit(tmp_path / "second", epochs=1, lr=1e-9, initial_model=str(tmp_path / "first"))
    assert second.state.evaluations[0][1]["loss"] == pytest.approx(first.state.best, rel=0.01)


def test_ranges_and_wrong_results_are_refused_with_the_next_thing_to_do(tmp_path):
    with pytest.raises(UsageError, match="lr has a Range"):
        Fit(small(lr=Range([0.1, 0.2])), torch.nn.Linear(1, 1))

    class Wrong(Fit):
        def train_batch(self, batch):
            return self.model(batch[0])

    with pytest.raises(UsageError, match="shape"):
        fit(tmp_path, Wrong)
