"""Metrics are read off the lines that common scripts print, with steps that rise, and off no others."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from shoal.agent.workers.log_metrics import LogMetrics


def read(*lines: str, position: int | None = None) -> dict[str, list[tuple[int, float]]]:
    metrics = LogMetrics(lambda: position)
    for n, line in enumerate(lines):
        metrics.feed(line.encode(), 1000.0 + n)
    found: dict[str, list[tuple[int, float]]] = {}
    for record in map(json.loads, metrics.pop_until(math.inf)):
        assert record["k"] == "g"
        for name, value in record["v"].items():
            found.setdefault(name, []).append((record["i"], value))
    return found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("epoch 0 loss 1.17", {"loss": (0, 1.17)}),
        ("Epoch: 3, loss: 1.17, val_loss: 0.9", {"loss": (3, 1.17), "val_loss": (3, 0.9)}),
        ("Epoch 3/10 | train loss 0.5 | val loss 0.7 | val acc 81.2%",
         {"train_loss": (3, 0.5), "val_loss": (3, 0.7), "val_acc": (3, 81.2)}),
        ("step 50/200 loss=0.3 lr=1e-3", {"loss": (50, 0.3), "lr": (50, 0.001)}),
        ("iter 40: loss 4.2874, time 31.1ms, mfu 4.1%", {"loss": (40, 4.2874)}),
        ("step 250: train loss 2.41, val loss 2.52", {"train_loss": (250, 2.41), "val_loss": (250, 2.52)}),
        (" 50%|█████     | 100/200 [00:10<00:10,  9.9it/s, loss=0.3, acc=0.91]", {"loss": (100, 0.3), "acc": (100, 0.91)}),
        ("Epoch 1:  50%|█████| 10/20 [00:10<00:10,  9.9it/s, v_num=0, train_loss=0.3]", {"train_loss": (10, 0.3)}),
        ("{'loss': 2.31, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': 0.25}",
         {"loss": (70, 2.31), "grad_norm": (70, 1.5), "learning_rate": (70, 5e-5)}),
        ("{'loss': '2.31', 'learning_rate': '5e-05', 'epoch': '0.25'}", {"loss": (70, 2.31), "learning_rate": (70, 5e-5)}),
        ("{'eval_loss': 1.9, 'eval_accuracy': 0.7, 'epoch': 1.0}", {"eval_loss": (70, 1.9), "eval_accuracy": (70, 0.7)}),
        ('{"step": 12, "loss": 0.5}', {"loss": (12, 0.5)}),
        ("{'epoch': 3, 'loss': 0.5}", {"loss": (3, 0.5)}),
        ("100/200 ━━━━━━━━ 1s 5ms/step - accuracy: 0.9312 - loss: 0.2210 - val_loss: 0.31",
         {"accuracy": (100, 0.9312), "loss": (100, 0.221), "val_loss": (100, 0.31)}),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.301", {"loss": (640, 2.301)}),
        ("Test set: Average loss: 0.0531, Accuracy: 9800/10000 (98%)", {"test_loss": (70, 0.0531), "test_accuracy": (70, 0.98)}),
        ("Epoch: [0][  10/5005]\tTime  0.3 ( 0.5)\tLoss 6.9876e+00 (6.95)\tAcc@1   0.10 (  0.2)", {"loss": (10, 6.9876), "acc1": (10, 0.1)}),
        ("INFO:root:[step 7] train/loss=0.25", {"train_loss": (7, 0.25)}),
        ("step 3 loss nan", {"loss": (3, math.nan)}),
        ("Validation: loss 0.5 acc 0.8", {"val_loss": (70, 0.5), "val_acc": (70, 0.8)}),
    ],
)  # fmt: skip
def test_what_common_scripts_print_is_read(line: str, expected: dict[str, Any]) -> None:
    found = read(line, position=70)
    assert (
        str({name: points[0] for name, points in found.items()}) == str(expected)
        or {name: points[0] for name, points in found.items()} == expected
    )


@pytest.mark.parametrize(
    "line",
    [
        "Namespace(lr=0.1, loss='mse', epochs=3)",
        "{'lr': 0.1, 'epochs': 10, 'loss_weight': 0.5}",
        "lr 0.001",
        "best val loss: 0.3",
        "val_loss improved from 0.5 to 0.3",
        "Error 404: lossless.example.org",
        "loaded 12 files, no errors",
        "  warnings.warn('accuracy is deprecated since 1.2.3')",
        "traceback: accuracy=accuracy_of(1, 2)",
        "installing accelerate 1.2",
        "loss",
        "x" * 5000 + " loss 1.0",
    ],
)
def test_other_lines_are_no_metrics(line: str) -> None:
    assert read(line) == {}


def test_a_counter_that_starts_again_with_each_epoch_continues() -> None:
    lines = [f"Train Epoch: {e} [{at}/100 (1%)]\tLoss: {1 / (e + at + 1)}" for e in (1, 2) for at in (0, 50)]
    assert [step for step, _ in read(*lines)["loss"]] == [0, 50, 100, 150]


def test_a_state_of_a_bar_that_is_printed_twice_counts_once() -> None:
    bar = " 50%|█████ | 100/200 [00:10<00:10,  9.9it/s, loss=0.3]"
    assert read(bar, bar)["loss"] == [(100, 0.3)]


def test_lines_without_a_counter_are_numbered_behind_the_bar() -> None:
    assert [step for step, _ in read("loss 3", "loss 2", "loss 1")["loss"]] == [0, 1, 2]
    assert [step for step, _ in read("loss 3", "loss 2", position=10)["loss"]] == [10, 11]


def test_many_lines_of_one_epoch_have_rising_steps() -> None:
    lines = ["epoch 0 loss 3", "epoch 0 loss 2", "epoch 0 loss 1", "epoch 1 loss 1"]
    assert [step for step, _ in read(*lines)["loss"]] == [0, 1, 2, 3]


def test_a_point_is_held_back_until_the_sdk_would_have_been_recognised() -> None:
    metrics = LogMetrics()
    metrics.feed(b"step 1 loss 1", 10.0)
    assert metrics.pop_until(9.0) == []
    assert len(metrics.pop_until(10.0)) == 1
    assert metrics.pop_until(99.0) == []


def test_a_flood_is_thinned_and_its_names_are_limited() -> None:
    metrics = LogMetrics()
    for step in range(3000):
        metrics.feed(f"step {step} loss 1".encode(), 10.0)
    assert 400 < len(metrics.pop_until(99.0)) < 700
    for n in range(150):
        metrics.feed(f"step {n} m{n}_loss=1".encode(), 100.0)
    names = {name for record in metrics.pop_until(999.0) for name in json.loads(record)["v"]}
    assert len(names) == 99


def test_secrets_in_a_line_are_hidden_before_it_is_read() -> None:
    metrics = LogMetrics(redact=lambda line: line.replace(b"s3cret", b"***"))
    metrics.feed(b"step 1 s3cret_loss=1", 10.0)
    assert b"s3cret" not in b"".join(metrics.pop_until(99.0))
