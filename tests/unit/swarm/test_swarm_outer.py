"""The agreed model: the outer step, error feedback, and states that fit or do not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shoal.core.errors import Refused  # noqa: E402
from shoal.testing.extras import needs  # noqa: E402

pytestmark = needs("hivemind")


@pytest.fixture(autouse=True, scope="module")
def _imports() -> None:
    global Outer
    from shoal.swarm.outer import Outer


def small(seed: int = 0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))


def outer(model, *, lr: float = 1.0, momentum: float = 0.0, feeds_back: bool = False) -> Outer:
    return Outer(model, lr=lr, momentum=momentum, feeds_back=feeds_back)


def learn(model, by: float = 0.1) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=by)


def test_alone_with_rate_one_the_outer_step_is_what_was_learnt():
    model = small()
    agreed = outer(model)
    learn(model)
    learnt = [p.clone() for p in model.parameters()]
    agreed.apply(agreed.update())
    for parameter, wanted in zip(model.parameters(), learnt, strict=True):
        torch.testing.assert_close(parameter, wanted)


def test_the_average_of_two_peers_is_where_both_end():
    one, other = small(), small()
    first, second = outer(one), outer(other)
    learn(one)
    learn(other)
    middle = [(a + b) / 2 for a, b in zip(one.parameters(), other.parameters(), strict=True)]
    average = (first.update() + second.update()) / 2
    first.apply(average)
    second.apply(average)
    assert torch.equal(first.anchor, second.anchor)
    for parameter, wanted in zip(one.parameters(), middle, strict=True):
        torch.testing.assert_close(parameter, wanted)


def test_momentum_carries_the_last_rounds_on_as_nesterov_does():
    model = small()
    agreed = outer(model, lr=0.5, momentum=0.9)
    before, along = agreed.anchor.clone(), torch.ones_like(agreed.anchor)
    agreed.apply(along)
    agreed.apply(along)
    moved = (before - agreed.anchor)[: agreed.trained]
    torch.testing.assert_close(moved, torch.full_like(moved, 0.5 * (1.9 + (0.9 * 1.9 + 1))))
    apart = (before - agreed.anchor)[agreed.trained :]
    torch.testing.assert_close(apart, torch.full_like(apart, 2.0))


def test_what_rounding_keeps_back_is_sent_with_the_next_round():
    model = small()
    agreed = outer(model, feeds_back=True)
    total, sent = torch.zeros_like(agreed.anchor), torch.zeros_like(agreed.anchor)
    for _ in range(50):
        learn(model)
        total += agreed.anchor - agreed._read()
        update = agreed.update()
        sent += update
        agreed.sent()
        agreed.write()
    assert float((total - sent - agreed.residual).abs().max()) < 1e-4
    assert float(agreed.residual.abs().max()) < 0.1, "no more than one round's rounding is owed"


def test_an_update_that_nobody_got_is_not_taken_for_sent():
    model = small()
    agreed = outer(model, feeds_back=True)
    learn(model)
    assert torch.equal(agreed.update(), agreed.update())
    assert not agreed.residual.any()


def test_a_peer_that_loads_another_peers_state_is_equal_to_it():
    model = small()
    agreed = outer(model, momentum=0.5)
    learn(model)
    agreed.apply(agreed.update())
    late = outer(small(1), momentum=0.5)
    late.load(agreed.tensors())
    assert torch.equal(late.anchor, agreed.anchor) and torch.equal(late.velocity, agreed.velocity)
    assert torch.equal(late.update(), torch.zeros_like(late.anchor))


@pytest.mark.parametrize("spoil", ["shape", "missing", "not finite"])
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(spoil: str):
    model = small()
    agreed = outer(model)
    before, tensors = agreed.anchor.clone(), outer(small(1)).tensors()
    name = next(iter(tensors))
    if spoil == "missing":
        del tensors[name]
    else:
        tensors[name] = torch.zeros(3) if spoil == "shape" else tensors[name] * float("nan")
    with pytest.raises(Refused, match=name):
        agreed.load(tensors)
    assert torch.equal(agreed.anchor, before)


def test_other_shapes_have_another_fingerprint_and_other_values_do_not():
    assert outer(small()).fingerprint == outer(small(1)).fingerprint
    assert outer(small()).fingerprint != outer(torch.nn.Linear(4, 8)).fingerprint


def test_frozen_parameters_stay_at_home():
    model = small()
    model[0].weight.requires_grad_(False)
    assert "model/0.weight" not in outer(model).tensors()
