"""True gradient: however a batch is split over workers and mini-batches, the gradient is that of the whole batch at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from shoal.train import Params, Trainer  # noqa: E402
from shoal.train.gradients import Gradient, StepTotals  # noqa: E402
from shoal.train.precision import Precision  # noqa: E402

functional = torch.nn.functional

splits = st.integers(1, 4).flatmap(
    lambda accumulate: st.lists(
        st.lists(st.integers(1, 9), min_size=accumulate, max_size=accumulate), min_size=1, max_size=5
    )
)
"""Samples of each mini-batch of each worker."""
quick = settings(max_examples=30, deadline=None)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def samples_of(count, seed):
    torch.manual_seed(seed)
    return torch.randn(count, 5), torch.randint(0, 3, (count,))


def gradient_of(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def at_once(batch, precision):
    model = network()
    with precision.forward():
        loss = functional.cross_entropy(model(batch[0]).float(), batch[1])
    loss.backward()
    return gradient_of(model), float(loss.detach())


def in_parts(split, batch, precision, *, by_sample):
    """Each worker a model of its own; the run's averages over mini-batches and workers by hand, the rest by what trains."""
    rule = Gradient(by_sample=by_sample, world_size=len(split))
    models, tallies = [network() for _ in split], []
    at = 0
    for model, counts in zip(models, split, strict=True):
        tally = StepTotals(by_sample=by_sample)
        for count in counts:
            x, y = batch[0][at : at + count], batch[1][at : at + count]
            at += count
            with precision.forward():
                loss = functional.cross_entropy(model(x).float(), y)
            (rule.weigh(loss, count) / len(counts)).backward()
            tally.add(float(loss.detach()), count, {})
        tallies.append(tally)
    own = models[0]
    for parameters in zip(*(model.parameters() for model in models), strict=True):
        parameters[0].grad = torch.stack([p.grad for p in parameters]).mean(0)
    rule.put_right(own.parameters(), samples=at, pieces=len(split[0]))
    weight = sum(tally._weight for tally in tallies)
    return gradient_of(own), sum(tally._loss for tally in tallies) / weight


@quick
@given(split=splits, seed=st.integers(0, 999))
def test_it_is_the_gradient_of_the_whole_batch(split, seed):
    batch = samples_of(sum(map(sum, split)), seed)
    precision = Precision("none", torch.device("cpu"))
    expected, loss = at_once(batch, precision)
    found, mean_loss = in_parts(split, batch, precision, by_sample=True)
    assert torch.allclose(found, expected, atol=1e-6, rtol=1e-5)
    assert mean_loss == pytest.approx(loss, rel=1e-5)


@quick
@given(split=splits, seed=st.integers(0, 999))
def test_so_it_is_in_mixed_precision(split, seed):
    batch = samples_of(sum(map(sum, split)), seed)
    precision = Precision("bf16", torch.device("cpu"))
    expected, loss = at_once(batch, precision)
    found, mean_loss = in_parts(split, batch, precision, by_sample=True)
    # bf16 keeps 8 bits, and each mini-batch's gradient is rounded to them.
    assert float((found - expected).norm()) <= 0.02 * float(expected.norm()) + 1e-3
    assert mean_loss == pytest.approx(loss, rel=1e-2)


def test_the_plain_mean_of_unequal_means_is_another_gradient():
    split = [[1, 9], [2, 8]]
    batch = samples_of(20, 1)
    precision = Precision("none", torch.device("cpu"))
    expected, _ = at_once(batch, precision)
    found, _ = in_parts(split, batch, precision, by_sample=False)
    assert float((found - expected).norm()) > 0.1 * float(expected.norm())


class Recorded(Trainer):
    """Trains on given batches, and keeps each step's gradient."""

    def __init__(self, params, model, steps):
        super().__init__(params, model, torch.optim.SGD(model.parameters(), lr=params.lr))
        self.steps, self.gradients = steps, []

    def training_data(self):
        return iter([(0, batch) for batches in self.steps for batch in batches])

    def train_batch(self, batch):
        return functional.cross_entropy(self.model(batch[0]).float(), batch[1])

    def on_step(self, figures):
        self.gradients.append((gradient_of(self.model), figures["loss"]))


@pytest.mark.parametrize("amp", ["none", "bf16"])
def test_a_trainer_alone_gathers_it_over_mini_batches(tmp_path, monkeypatch, amp):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(3)
    accumulate, steps = 3, []
    for _ in range(12):
        counts = torch.randint(1, 10, (accumulate,)).tolist()
        x, y = samples_of(sum(counts), len(steps))
        steps.append(list(zip(x.split(counts), y.split(counts), strict=True)))
    params = Params(
        max_steps=len(steps),
        accumulate=accumulate,
        true_gradient=True,
        amp=amp,
        lr=1e-12,
        clip_norm=None,
        decay="none",
        train_samples=1000,
        keep_models=1,
    )
    trainer = Recorded(params, network(), steps)
    outcome = trainer.fit()
    assert outcome.reason == "finished" and outcome.seen == sum(len(y) for batches in steps for _, y in batches)
    precision = Precision(amp, torch.device("cpu"))
    for batches, (found, told) in zip(steps, trainer.gradients, strict=True):
        whole = tuple(torch.cat(part) for part in zip(*batches, strict=True))
        expected, loss = at_once(whole, precision)
        assert float((found - expected).norm()) <= (1e-5 if amp == "none" else 0.02) * float(expected.norm()) + 1e-6
        assert told == pytest.approx(loss, rel=1e-5 if amp == "none" else 1e-2)
