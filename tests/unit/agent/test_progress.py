"""Progress is read off the lines people really print, and off no others."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.agent.progress import ProgressReader


def read(*lines: str, pace: float = 1.0) -> dict[str, Any] | None:
    reader = ProgressReader()
    for n, line in enumerate(lines):
        reader.feed(line.encode(), 1000.0 + n * pace)
    return reader.report()


@pytest.mark.parametrize(
    ("line", "step", "total", "unit"),
    [
        (" 50%|█████     | 100/200 [00:10<00:10,  9.9it/s, loss=0.3]", 100, 200, "step"),
        ("step 50/200 loss 0.3", 50, 200, "step"),
        ("Step: 50 / 200", 50, 200, "step"),
        ("global_step=50/200", 50, 200, "step"),
        ("[50/200] loss 3.1", 50, 200, "step"),
        ("Epoch 3/10", 3, 10, "epoch"),
        ("Epoch [3/10]", 3, 10, "epoch"),
        ("iter 40 of 100", 40, 100, "step"),
        ("Iteration 40/100, lr 1e-3", 40, 100, "step"),
        ("batch 7/12", 7, 12, "step"),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.3", 640, 60000, "step"),
    ],
)
def test_what_people_print_is_understood(line: str, step: int, total: int, unit: str) -> None:
    found = read(line)
    assert found is not None
    assert (found["step"], found["total"], found["unit"]) == (step, total, unit)
    assert found["fraction"] == pytest.approx(step / total, abs=1e-5)


@pytest.mark.parametrize(
    "line",
    [
        "loss 0.3 at 10:22",
        "loaded 12 of the best samples",
        "[2024/05/12 10:00:01] hello",
        "[05/12 10:00:01 d2.engine.train_loop]: start",
        "see https://example.com/3/10",
        "accuracy 9/10",
        "step 300/200",
        "step 5/0",
        "12.5k/60k [00:01]",
        "step " + "9" * 5000 + "/" + "9" * 5000,
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert read(line) is None


def test_the_time_left_follows_the_recent_pace() -> None:
    found = read(*[f"step {n}/100" for n in range(0, 51, 5)], pace=2.0)
    assert found is not None and found["eta_s"] == pytest.approx(20.0)


def test_there_is_no_time_left_to_tell_from_one_line() -> None:
    found = read("step 1/10")
    assert found is not None and found["eta_s"] is None


def test_an_evaluation_inside_training_does_not_take_over() -> None:
    found = read("| 500/1000 [00:10<00:10]", "| 3/50 [00:01<00:10]", "| 50/50 [00:01<00:10]")
    assert found is not None and (found["step"], found["total"]) == (500, 1000)


def test_training_takes_over_from_a_finished_preparation() -> None:
    found = read("Map: 100%|##| 5000/5000 [00:01<00:00]", "| 1/200 [00:01<01:00]")
    assert found is not None and found["total"] == 200


def test_steps_that_start_over_with_every_epoch_make_one_fraction_with_it() -> None:
    found = read("Epoch [1/4], Step [50/100]", "Epoch [1/4], Step [100/100]", "Epoch [2/4], Step [50/100]")
    assert found is not None
    assert (found["unit"], found["step"], found["total"], found["fraction"]) == ("epoch", 2, 4, 0.375)


def test_steps_that_go_on_over_epochs_count_by_themselves() -> None:
    found = read("Epoch 1/2", "step 50/200", "step 100/200", "Epoch 2/2", "step 150/200")
    assert found is not None and (found["unit"], found["fraction"]) == ("step", 0.75)
