"""The learning rate follows the swarm's steps, not the script's."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from shoal.swarm.schedule import Schedule  # noqa: E402


def made(kind: str):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=1.0)
    makers = {
        "lambda": lambda: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        "one cycle": lambda: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=100),
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50),
    }
    return optimizer, makers[kind]()


@pytest.mark.parametrize("kind", ["lambda", "one cycle", "cosine"])
def test_a_late_peer_has_the_rate_of_the_others_at_once(kind: str):
    warnings.simplefilter("ignore")
    optimizer, scheduler = made(kind)
    for _ in range(37):
        optimizer.step()
        scheduler.step()
    late, schedule = made(kind)
    Schedule(schedule).follow(37)
    assert late.param_groups[0]["lr"] == pytest.approx(optimizer.param_groups[0]["lr"])


def test_the_scripts_own_steps_do_nothing_and_a_rollback_goes_back():
    warnings.simplefilter("ignore")
    optimizer, scheduler = made("lambda")
    schedule = Schedule(scheduler)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 1.0
    schedule.follow(9)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    schedule.follow(4)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1), "a guess that was too high is waited for"
    schedule.rewind(4)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)
    assert isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR)
    assert scheduler.state_dict()["last_epoch"] == 4
