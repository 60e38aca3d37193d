"""True gradient, optimizers by name, LAMB and the average of weights."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import UsageError

torch = pytest.importorskip("torch")

from shoal.train.ema import Ema  # noqa: E402
from shoal.train.gradients import Gradient, StepTotals, non_finite, sample_count  # noqa: E402
from shoal.train.optim import make_optimizer  # noqa: E402
from shoal.train.precision import Precision  # noqa: E402


def gradient_of(batches, true_gradient):
    """Return the gradient of loss = mean(w·x) over mini-batches of one worker."""
    weight = torch.zeros(1, requires_grad=True)
    rule = Gradient(by_sample=true_gradient, world_size=1)
    for batch in batches:
        # The run averages over the mini-batches.
        (rule.weigh((weight * batch).mean(), len(batch)) / len(batches)).backward()
    rule.put_right([weight], samples=sum(map(len, batches)), pieces=len(batches))
    return float(weight.grad)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(-50, 50), min_size=1, max_size=7), min_size=1, max_size=5))
def test_the_true_gradient_is_that_of_one_large_batch(values):
    batches = [torch.tensor(v, dtype=torch.float32) for v in values]
    assert gradient_of(batches, True) == pytest.approx(float(torch.cat(batches).mean()), abs=1e-4)
    means = torch.stack([b.mean() for b in batches])
    assert gradient_of(batches, False) == pytest.approx(float(means.mean()), abs=1e-4)


@pytest.mark.parametrize(("by_sample", "loss"), [(True, 2.5), (False, 2.0)])
def test_the_loss_of_a_step_weighs_samples_or_mini_batches(by_sample, loss):
    tally = StepTotals(by_sample=by_sample)
    tally.add(1.0, 1, {"accuracy": 0.0})
    tally.add(3.0, 3, {"accuracy": 1.0})
    assert tally.over_all(None, 1) == (4, loss)
    assert tally.figures == {"accuracy": 0.75 if by_sample else 0.5}


def test_the_first_tensor_tells_how_many_samples_a_batch_has():
    assert sample_count([{"x": torch.zeros(5, 2)}, torch.zeros(3)]) == 5
    assert sample_count("nothing") == 1


def test_what_is_not_finite_is_named():
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    model.bias.grad = torch.tensor([float("inf")])
    assert non_finite(model) == ["weight", "bias.grad"]


@pytest.mark.parametrize("name", ["AdamW", "sgd", "LAMB", "lamb"])
def test_optimizers_by_name_learn_and_do_not_decay_biases(name):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = make_optimizer(name, model, lr=0.02, weight_decay=0.1)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.1, 0.0]
    x = torch.randn(64, 4)
    y = x @ torch.tensor([[1.0], [2.0], [-1.0], [0.5]])
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2


def test_an_unknown_optimizer_suggests_one():
    with pytest.raises(UsageError) as caught:
        make_optimizer("AdmaW", torch.nn.Linear(1, 1), lr=1.0, weight_decay=0.0)
    assert "AdamW" in str(caught.value.hint)


def test_the_average_of_weights_is_used_inside_and_put_back_after():
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 1.0)
    ema = Ema(model, 0.5)
    torch.nn.init.constant_(model.weight, 3.0)
    ema.step()
    with ema.applied():
        assert float(model.weight) == 2.0
    assert float(model.weight) == 3.0
    other = Ema(torch.nn.Linear(1, 1, bias=False), 0.5)
    other.load_state_dict(ema.state_dict())
    assert float(other.state_dict()["ema"]["weight"]) == 2.0


@pytest.mark.parametrize("kind", ["none", "bf16"])
def test_a_step_in_each_precision_changes_the_weights(kind):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    precision = Precision(kind, torch.device("cpu"))
    before = model.weight.detach().clone()
    with precision.forward():
        loss = model(torch.ones(3, 2)).float().pow(2).mean() + 1
    precision.backward(loss)
    precision.unscale(optimizer)
    assert precision.step(optimizer)
    assert not torch.equal(before, model.weight)
