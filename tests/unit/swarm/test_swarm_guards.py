"""Robust averages, checks of updates, the loss watch."""

from __future__ import annotations

import math

import pytest
import torch

from shoal.swarm.averaging.robust import contradicted, limit_weights, median, odd_ones, shorten_parts
from shoal.swarm.update_checks import LossWatch, check_update, check_weight, clip, mean, norm_of, robust

SIZE = 2_000


def honest(count: int, *, noise: float = 1.0) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the true update, and for each peer the true one with noise."""
    rng = torch.Generator().manual_seed(1)
    truth = torch.randn(SIZE, generator=rng)
    return truth, [truth + noise * torch.randn(SIZE, generator=rng) for _ in range(count)]


def off(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def test_the_mean_weighs_by_samples() -> None:
    found = mean([torch.ones(3), torch.full((3,), 4.0)], [2, 1])
    assert torch.allclose(found, torch.full((3,), 2.0))


def test_among_honest_peers_robust_is_as_good_as_the_mean() -> None:
    truth, parts = honest(8)
    assert off(robust(parts, [1.0] * 8), truth) < 1.15 * off(mean(parts, [1.0] * 8), truth)


@pytest.mark.parametrize("bad", [1, 2, 3])
@pytest.mark.parametrize("factor", [1000.0, -1.0, -1000.0])
def test_a_minority_does_not_steer_the_robust_average(bad: int, factor: float) -> None:
    truth, parts = honest(8)
    without = off(mean(parts[bad:], [1.0] * (8 - bad)), truth)
    poisoned = [part * factor for part in parts[:bad]] + parts[bad:]
    assert off(robust(poisoned, [1.0] * 8), truth) < 1.5 * without
    assert off(mean(poisoned, [1.0] * 8), truth) > without


def test_those_who_send_all_the_same_are_bounded_though_they_agree_with_each_other() -> None:
    truth, parts = honest(8)
    lie = torch.randn(SIZE, generator=torch.Generator().manual_seed(7)) * truth.norm() / math.sqrt(SIZE)
    found = robust([lie, lie, *parts[2:]], [1.0] * 8)
    assert off(found, truth) < 0.7


def test_a_claimed_weight_counts_only_so_far() -> None:
    assert limit_weights([10.0, 12.0, 1e30]) == [10.0, 12.0, 36.0]


def test_of_two_the_longer_is_cut_to_the_shorter() -> None:
    found = robust([torch.ones(4), torch.full((4,), 1000.0)], [1.0, 1.0])
    assert torch.allclose(found, torch.ones(4))


def test_one_alone_is_its_own_average_and_nothing_stays_nothing() -> None:
    assert torch.equal(robust([torch.ones(2, 2)], [1.0]), torch.ones(2, 2))
    assert torch.equal(robust([torch.zeros(2, 2)] * 4, [1.0] * 4), torch.zeros(2, 2))


def test_the_median_of_an_even_number_lies_between_the_two_in_the_middle() -> None:
    assert median(torch.tensor([[0.0], [1.0], [3.0], [100.0]])).item() == 2.0


def test_parts_longer_than_the_clip_are_cut_to_it() -> None:
    parts = [torch.ones(4), torch.ones(4), torch.full((4,), 50.0)]
    assert torch.allclose(shorten_parts(parts, 3.0)[2], torch.full((4,), 3.0))
    assert torch.allclose(shorten_parts(parts, 3.0)[0], torch.ones(4))


def test_whoever_most_contradict_is_named_and_never_a_majority() -> None:
    _, parts = honest(5)
    rows = torch.stack([-parts[0], *parts[1:]])
    assert contradicted(rows) == [True, False, False, False, False]
    assert odd_ones([parts[0] * 1000, *parts[1:]]) == [True, False, False, False, False]
    assert odd_ones([parts[0], -parts[0]]) == [False, False]


def test_pure_noise_condemns_nobody_for_long() -> None:
    rng = torch.Generator().manual_seed(3)
    named = sum(sum(contradicted(torch.randn(8, 500, generator=rng))) for _ in range(50))
    assert named < 0.05 * 8 * 50


def test_updates_that_cannot_be_one_are_named() -> None:
    like = [torch.zeros(2, 2), torch.zeros(3)]
    assert check_update([torch.ones(2, 2), torch.ones(3)], like) is None
    assert "1 tensors instead of 2" in str(check_update(like[:1], like))
    assert "shape [1] instead of [3]" in str(check_update([like[0], torch.zeros(1)], like))
    assert "not finite" in str(check_update([like[0], torch.tensor([1.0, math.nan, 0.0])], like))
    assert "not finite" in str(check_update([like[0], torch.tensor([1.0, math.inf, 0.0])], like))
    assert "torch.int64" in str(check_update([like[0], torch.zeros(3, dtype=torch.int64)], like))


@pytest.mark.parametrize("weight", [math.nan, math.inf, -1.0, 0.0])
def test_senseless_weights_are_named(weight: float) -> None:
    assert check_weight(weight) is not None
    assert check_weight(3.0) is None


def test_clip_scales_all_tensors_together() -> None:
    tensors = [torch.full((4,), 3.0), torch.full((4,), 4.0)]
    assert clip(tensors, 1.0) == pytest.approx(10.0)
    assert norm_of(tensors) == pytest.approx(1.0)
    assert tensors[0][0].item() == pytest.approx(0.3)
    assert clip(tensors, 2.0) == pytest.approx(1.0)
    assert norm_of(tensors) == pytest.approx(1.0)


def test_a_falling_noisy_loss_is_ok_and_the_newest_round_good() -> None:
    watch = LossWatch()
    rng = torch.Generator().manual_seed(0)
    for round_ in range(200):
        loss = 4.0 / (1 + round_ / 20) + 1.0 + 0.1 * float(torch.randn(1, generator=rng))
        assert watch.feed(loss, round_) == "ok"
    assert watch.good_round == 199


def test_one_outlier_is_forgiven_two_are_not() -> None:
    watch = LossWatch()
    for round_ in range(5):
        watch.feed(2.0, round_)
    assert watch.feed(3.5, 5) == "ok"
    assert watch.feed(2.0, 6) == "ok"
    assert watch.feed(3.5, 7) == "ok"
    assert watch.feed(3.6, 8) == "explode"
    assert watch.good_round == 6


@pytest.mark.parametrize("loss", [math.nan, math.inf, 50.0])
def test_no_number_or_a_leap_explodes_at_once(loss: float) -> None:
    watch = LossWatch()
    watch.feed(4.0, 0)
    watch.feed(3.9, 1)
    assert watch.feed(loss, 2) == "explode"
    assert watch.good_round == 1


def test_a_loss_that_creeps_upwards_is_held_against_the_best() -> None:
    watch = LossWatch()
    losses = [2.0, 2.0, 2.0, *(2.0 * 1.06**n for n in range(40))]
    assert "explode" in [watch.feed(loss, n) for n, loss in enumerate(losses)]


def test_after_a_rollback_it_is_patient_again() -> None:
    watch = LossWatch()
    for round_ in range(4):
        watch.feed(2.0, round_)
    assert [watch.feed(3.5), watch.feed(3.5)] == ["ok", "explode"]
    watch.rolled_back()
    assert watch.feed(3.5) == "ok"
    assert watch.feed(2.0, 4) == "ok"


def test_a_part_too_short_for_the_samples_claimed_is_an_outlier_and_that_of_a_slow_peer_is_none() -> None:
    _, parts = honest(5)
    nothing, little = torch.zeros(SIZE), parts[0] / 25
    assert odd_ones([nothing, *parts[1:]], [100.0] * 5) == [True, False, False, False, False]
    assert odd_ones([little, *parts[1:]], [100.0] * 5) == [True, False, False, False, False]
    assert odd_ones([little, *parts[1:]], [4.0, *[100.0] * 4]) == [False] * 5
    assert odd_ones([nothing] * 5, [100.0] * 5) == [False] * 5
