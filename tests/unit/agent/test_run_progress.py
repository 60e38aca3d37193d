"""Progress of a job as it reports it."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.agent.sdk_records.progress import RunProgress
from shoal.core.jobs import Progress


def target(i: int, at: float = 0.0, **fields: Any) -> dict[str, Any]:
    return {"k": "p", "i": i, "t": at, "total": None, "epoch": None, "epochs": None, "done": False, **fields}


def step(i: int, at: float) -> dict[str, Any]:
    return {"k": "s", "i": i, "t": at, "v": {}}


def report(told: RunProgress) -> Progress:
    found = told.report()
    assert found is not None
    return Progress.model_validate(found)


def test_silence_is_no_progress() -> None:
    assert RunProgress().report() is None


def test_steps_without_a_target_are_counted() -> None:
    told = RunProgress()
    told.note(step(7, 1.0))
    found = report(told)
    assert (found.step, found.total, found.fraction, found.eta_s, found.source) == (7, None, None, None, "sdk")


def test_an_even_pace_gives_a_time_left_and_a_narrow_range() -> None:
    told = RunProgress()
    told.note(target(0, total=1000))
    for i in range(1, 101):
        told.note(step(i, i * 0.5))
    found = report(told)
    assert found.fraction == 0.1
    assert found.eta_s == pytest.approx(450, rel=0.02)
    assert found.eta_low_s == pytest.approx(450, rel=0.1)
    assert found.eta_high_s == pytest.approx(450, rel=0.1)


def test_an_uneven_pace_gives_a_range_around_it() -> None:
    told, at = RunProgress(), 0.0
    told.note(target(0, total=1000))
    for i in range(1, 101):
        at += 1.0 if (i // 10) % 2 else 0.5
        told.note(step(i, at))
    found = report(told)
    assert found.eta_low_s is not None and found.eta_s is not None and found.eta_high_s is not None
    assert found.eta_low_s < found.eta_s * 0.95 < found.eta_s * 1.05 < found.eta_high_s
    assert found.eta_low_s > 450 * 0.8 and found.eta_high_s < 900 * 1.2


def test_epochs_count_where_there_is_no_total() -> None:
    told = RunProgress()
    for i in range(5):
        told.note(target(i * 10, i * 10.0, epoch=i / 2, epochs=4))
        told.note(step(i * 10 + 1, i * 10.0 + 1))
    found = report(told)
    assert found.fraction == 0.5
    assert found.eta_s == pytest.approx(40, rel=0.05)


def test_done_is_all_of_it_whatever_was_planned() -> None:
    told = RunProgress()
    told.note(target(0, total=1000))
    told.note(step(400, 1.0))
    told.note(target(400, 2.0, total=1000, done=True))
    found = report(told)
    assert (found.fraction, found.eta_s, found.step) == (1.0, 0.0, 400)


def test_going_back_forgets_the_pace() -> None:
    told = RunProgress()
    told.note(target(0, total=100))
    for i in range(1, 50):
        told.note(step(i, float(i)))
    told.note(step(10, 60.0))
    assert report(told).eta_s is None
    told.note(step(20, 70.0))
    assert report(told).eta_s == pytest.approx(80)


@pytest.mark.parametrize("bad", [{"i": "x"}, {"t": None}, {"total": "many"}, {"total": -3}, {"epoch": "one"}])
def test_malformed_words_do_no_harm(bad: dict[str, Any]) -> None:
    told = RunProgress()
    told.note(target(1, total=10) | bad)
    told.note(step(2, 5.0))
    assert report(told).step == 2
