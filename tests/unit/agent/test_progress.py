"""Progress is read off the lines people really print, and off no others."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.agent.workers.progress import ProgressReader, better_known


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
        ("Train [640/60000 (1%)]\tLoss: 2.3", 640, 60000, "step"),
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


def bars(*states: str) -> list[str]:
    """Return lines as tqdm draws them, from states such as "Epoch 1 5/10"."""
    lines = []
    for state in states:
        *words, count = state.split(" ")
        lines.append(f"{' '.join(words)}{':' if words else ''}  50%|█████     | {count} [00:10<00:10,  9.9it/s]")
    return lines


def at(*lines: str) -> tuple[int, int | None, str, float | None]:
    found = read(*lines)
    assert found is not None
    return found["step"], found["total"], found["unit"], found["fraction"]


def test_a_bar_inside_another_is_a_part_of_its_next_step() -> None:
    lines = bars("0/4", "25/100", "100/100", "1/4", "50/100")
    assert at(*lines[:2]) == (0, 4, "step", 0.0625)
    assert at(*lines[:4]) == (1, 4, "step", 0.25)
    assert at(*lines) == (1, 4, "step", 0.375)


def test_a_bar_of_epochs_counts_epochs() -> None:
    assert at(*bars("Epochs 1/4", "Train 50/100", "Train 100/100", "Val 5/10")) == (1, 4, "epoch", 0.5)


def test_the_outer_bar_is_found_even_if_it_is_seen_later_than_the_inner_one() -> None:
    assert at(*bars("80/100", "1/4", "30/100")) == (1, 4, "step", 0.325)


@pytest.mark.parametrize(
    "lines",
    [
        bars("Epoch 0 10/100", "Epoch 0 100/100"),
        bars("Epoch 0 100/100", "Validation 10/10", "Epoch 1 50/100"),
        bars("100/100", "20/100"),
        bars("train 100/100", "val 10/10", "train 20/100"),
        ["Train Epoch: 1 [59000/60000 (98%)]\tLoss: 2.3"],
        ["epoch 1 | step 100/100", "epoch 2 | step 10/100"],
    ],
)
def test_a_bar_per_epoch_is_not_the_progress_of_the_job(lines: list[str]) -> None:
    step, total, unit, fraction = at(*lines)
    assert (total, unit, fraction) == (None, "step", None)
    assert read(*lines)["eta_s"] is None  # type: ignore[index]
    assert step > 0


def test_steps_of_earlier_epochs_are_counted_too() -> None:
    assert at(*bars("Epoch 1 100/100", "Epoch 2 20/100"))[0] == 120


def test_bars_between_lines_of_epochs_are_combined_with_them_from_the_first_epoch_on() -> None:
    lines = ["Epoch 1/4", *bars("100/100", "Val 1/10"), "Epoch 2/4", *bars("50/100")]
    assert at(*lines[:2]) == (1, 4, "epoch", 0.25)
    assert at(*lines[:3]) == (1, 4, "epoch", 0.25)
    assert at(*lines) == (2, 4, "epoch", 0.375)


def test_epochs_that_are_printed_when_they_end_are_counted_as_done() -> None:
    lines = [*bars("100/100"), "Epoch 1/4 loss 0.3", *bars("50/100")]
    assert at(*lines) == (1, 4, "epoch", 0.375)
    assert at(*lines, *bars("100/100"), "Epoch 2/4 loss 0.3") == (2, 4, "epoch", 0.5)


def test_epochs_may_be_numbered_from_zero() -> None:
    assert at("Epoch 0/4 step 50/100") == (0, 4, "epoch", 0.125)
    assert at("Epoch 0/4 step 50/100", "Epoch 3/4 step 50/100") == (3, 4, "epoch", 0.875)


def test_a_bar_over_all_epochs_is_the_progress_whatever_is_printed_in_between() -> None:
    assert at(*bars("100/300"), "Epoch 1/3 loss 0.3", *bars("150/300")) == (150, 300, "step", 0.5)


def test_a_last_evaluation_does_not_take_over_from_a_complete_training() -> None:
    assert at(*bars("500/1000", "Eval 5/50", "1000/1000", "Eval 3/50")) == (1000, 1000, "step", 1.0)


def test_training_takes_over_from_a_preparation_whose_end_was_not_seen() -> None:
    reader = ProgressReader()
    for line, now in zip(bars("Download 4990/5000", "10/100", "20/100"), (0.0, 1.0, 400.0), strict=True):
        reader.feed(line.encode(), now)
    assert reader.report()["fraction"] == 0.2  # type: ignore[index]
    assert at(*bars("Download 4990/5000", "10/100", "Download 5000/5000", "20/100")) == (20, 100, "step", 0.2)


def test_words_before_a_bar_that_change_make_no_new_bar() -> None:
    assert at(*bars("loss nan 10/100", "loss inf 20/100")) == (20, 100, "step", 0.2)


def test_many_bars_are_not_all_remembered() -> None:
    assert at(*bars(*[f"{'x' * n} {n}/{n + 9}" for n in range(1, 200)], "0/400"))


def test_the_count_of_the_sdk_goes_before_one_that_was_read_unless_only_that_has_a_fraction() -> None:
    vague, exact = read(*bars("Epoch 1 5/10")), read("step 5/10")
    reported = {"step": 105, "total": None, "unit": "step", "source": "sdk", "fraction": None, "eta_s": None}
    assert better_known(reported, vague) is reported
    assert better_known(reported, exact) is exact
    assert better_known(reported, None) is reported and better_known(None, exact) is exact


@pytest.mark.parametrize("first", [0, 3])
def test_lightnings_bar_counts_epochs_from_0_and_names_the_last(first: int) -> None:
    def bar(epoch: int, at: int) -> str:
        return f"Epoch {epoch}/5 ━━━╸━━━━ {at}/8 0:00:01 • 0:00:00 9.9it/s v_num: 0 train/loss: 0.3"

    lines = [bar(epoch, at) for epoch in range(first, 6) for at in range(9)]
    halfway = read(*lines[: lines.index(bar(4, 4)) + 1])
    assert halfway is not None
    assert (halfway["step"], halfway["total"], halfway["unit"]) == (4, 6, "epoch")
    assert halfway["fraction"] == pytest.approx(4.5 / 6)
    last = read(*lines[: lines.index(bar(5, 0)) + 1])
    assert last is not None
    assert last["fraction"] == pytest.approx(5 / 6)
    done = read(*lines)
    assert done is not None
    assert done["fraction"] == 1.0
