"""VAT, R-Drop and SMART against what they are defined to be."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from shoal.core.errors import UsageError  # noqa: E402
from shoal.train.regularize import rdrop_loss, rdrop_step, smart_loss, vat_loss  # noqa: E402
from shoal.train.regularize.distance import kl, squared, symmetric_kl  # noqa: E402
from shoal.train.regularize.smart import perturbation  # noqa: E402
from shoal.train.regularize.vat import worst_direction  # noqa: E402

functional = torch.nn.functional
seeds = st.integers(0, 10_000)
quick = settings(max_examples=25, deadline=None)


def network(seed, inputs=6, classes=4):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(inputs, 16), torch.nn.Tanh(), torch.nn.Linear(16, classes))


@quick
@given(seed=seeds)
def test_kl_is_that_of_torch_and_zero_between_equals(seed):
    torch.manual_seed(seed)
    p, q = torch.randn(5, 7), torch.randn(5, 7)
    theirs = functional.kl_div(q.log_softmax(1), p.log_softmax(1), log_target=True, reduction="batchmean")
    assert float(kl(p, q)) == pytest.approx(float(theirs), rel=1e-5)
    assert float(kl(p, p)) == pytest.approx(0, abs=1e-6)
    assert float(symmetric_kl(p, q)) == pytest.approx(float(kl(p, q) + kl(q, p)), rel=1e-6)


def test_a_mask_leaves_padding_out():
    p, q = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    only = [(0, 0), (0, 1), (1, 0)]
    expected = sum(float(kl(p[i, j][None], q[i, j][None])) for i, j in only) / 3
    assert float(kl(p, q, mask)) == pytest.approx(expected, rel=1e-5)
    assert float(squared(torch.tensor([1.0, 5.0]), torch.tensor([3.0, 0.0]), torch.tensor([True, False]))) == 4.0


@quick
@given(seed=seeds)
def test_the_direction_of_vat_raises_kl_more_than_chance_does(seed):
    model = network(seed)
    x = torch.randn(8, 6)
    clean = model(x).detach()
    worst = worst_direction(model, x, clean, iterations=3)
    assert torch.allclose(worst.flatten(1).norm(dim=1), torch.ones(8), atol=1e-5)
    small = 0.01
    raised = float(kl(clean, model(x + small * worst)).detach())
    chance = [torch.nn.functional.normalize(torch.randn(8, 6), dim=1) for _ in range(16)]
    others = [float(kl(clean, model(x + small * d)).detach()) for d in chance]
    assert raised > sum(others) / len(others)


@quick
@given(seed=seeds)
def test_vat_finds_the_first_eigenvector_of_what_kl_is_curved_like(seed):
    """For one sample, KL is half d·H·d near 0, and the worst direction is H's first eigenvector."""
    model = network(seed).double()
    x = torch.randn(1, 6, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda v: model(v)[0], x)[:, 0]
    p = torch.softmax(model(x)[0], 0).detach()
    hessian = jacobian.T @ (torch.diag(p) - torch.outer(p, p)) @ jacobian
    values, vectors = torch.linalg.eigh(hessian)
    if float(values[-2] / values[-1]) > 0.7:
        return
    torch.manual_seed(0)
    found = worst_direction(model, x, model(x).detach(), iterations=30)
    assert abs(float(found.double()[0] @ vectors[:, -1])) > 0.99


def test_the_vat_loss_trains_the_model_but_not_through_the_clean_output():
    model = network(3)
    x = torch.randn(8, 6)
    logits = model(x)
    logits.retain_grad()
    loss = vat_loss(model, x, logits, epsilon=1.0)
    loss.backward()
    assert float(loss.detach()) > 0
    assert logits.grad is None
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model[0].parameters())


def test_training_with_vat_makes_outputs_smoother():
    model = network(1)
    x = torch.randn(32, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = vat_loss(model, x, model(x), epsilon=1.0)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2


def test_where_nothing_moves_the_vat_loss_is_zero_and_finite():
    loss = vat_loss(lambda v: v * 0, torch.randn(4, 3), torch.zeros(4, 3))
    assert float(loss) == 0.0


@quick
@given(seed=seeds)
def test_rdrop_of_equal_outputs_is_zero_and_it_is_symmetric(seed):
    torch.manual_seed(seed)
    a, b = torch.randn(5, 3), torch.randn(5, 3)
    assert float(rdrop_loss(a, a)) == pytest.approx(0, abs=1e-6)
    assert float(rdrop_loss(a, b)) == pytest.approx(float(rdrop_loss(b, a)), rel=1e-5)
    assert float(rdrop_loss(a, b)) > 0


def test_rdrop_has_its_least_at_equality():
    a = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    b = a.detach().clone().requires_grad_()
    rdrop_loss(a, b).backward()
    assert torch.allclose(a.grad, torch.zeros_like(a), atol=1e-6) and torch.allclose(b.grad, a.grad, atol=1e-6)


def test_a_step_of_rdrop_goes_through_two_passes_with_their_own_dropout():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    seen = []

    def forward():
        seen.append(model(x))
        return seen[-1]

    def cross_entropy(logits):
        return functional.cross_entropy(logits, y)

    loss, logits = rdrop_step(forward, cross_entropy, alpha=2.0)
    assert len(seen) == 2 and logits is seen[0] and not torch.equal(*seen)
    expected = sum(cross_entropy(out) for out in seen) / 2 + 2.0 * rdrop_loss(*seen)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()))
    model.eval()
    loss, logits = rdrop_step(forward, cross_entropy)
    assert float(loss.detach()) == pytest.approx(float(cross_entropy(logits).detach()), abs=1e-6), (
        "without dropout nothing is added"
    )


@quick
@given(
    seed=seeds,
    epsilon=st.floats(1e-4, 1.0),
    step_size=st.floats(1e-4, 10.0),
    steps=st.integers(0, 4),
    norm=st.sampled_from(["inf", "l2"]),
)
def test_the_perturbation_of_smart_stays_in_its_ball(seed, epsilon, step_size, steps, norm):
    model = network(seed)
    x = torch.randn(5, 6)
    clean = model(x).detach()
    move = perturbation(
        model,
        x,
        lambda moved: symmetric_kl(clean, moved),
        epsilon=epsilon,
        step_size=step_size,
        noise=1e-2,
        steps=steps,
        norm=norm,
    )
    sizes = move.abs().amax(1) if norm == "inf" else move.norm(dim=1)
    assert float(sizes.max()) <= epsilon * (1 + 1e-5)
    assert not move.requires_grad


@pytest.mark.parametrize("norm", ["inf", "l2"])
def test_smart_looks_uphill(norm):
    model = network(2)
    x = torch.randn(64, 6)
    logits = model(x)
    found = {}
    for steps in (0, 1, 5):
        torch.manual_seed(4)
        loss = smart_loss(model, x, logits, epsilon=0.1, step_size=0.05, noise=0.01, steps=steps, norm=norm)
        found[steps] = float(loss.detach())
    assert found[0] < found[1] < found[5]


def test_the_smart_loss_of_numbers_is_their_squared_distance():
    torch.manual_seed(0)
    slope = torch.tensor([2.0, 0.0], requires_grad=True)
    x = torch.zeros(3, 2)
    loss = smart_loss(
        lambda v: v @ slope, x, x @ slope, epsilon=0.1, step_size=1.0, noise=1e-3, norm="inf", regression=True
    )
    assert float(loss.detach()) == pytest.approx((2.0 * 0.1) ** 2, rel=1e-4), "the corner of the ball, squared"
    loss.backward()
    assert float(slope.grad[0]) == pytest.approx(2 * 2.0 * 0.1**2, rel=1e-4)


def test_an_unknown_norm_is_refused():
    with pytest.raises(UsageError, match="'l2'"):
        smart_loss(lambda v: v, torch.zeros(1, 2), torch.zeros(1, 2), norm="l7")


def test_regularizers_work_in_sixteen_bits():
    model = network(0)
    x = torch.randn(8, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x)
        terms = [vat_loss(model, x, logits), smart_loss(model, x, logits), rdrop_loss(logits, model(x))]
    assert all(math.isfinite(float(term.detach())) and term.dtype == torch.float32 for term in terms)
