"""A prefork parent is worth its memory only where agents follow each other; one that fails costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.engines.local.prefork import PreforkParent
from shoal.testing.engines import eventually


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """An interpreter that gives up at once."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho no torch for you\nexit 3\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def prefork(tmp_path: Path, clock: Clock) -> Iterator[PreforkParent]:
    prefork = PreforkParent(sys.executable, {}, tmp_path / "log", clock)
    yield prefork
    prefork.close()


def test_there_is_none_for_jobs_that_come_now_and_then(prefork: PreforkParent, clock: Clock, tmp_path: Path) -> None:
    for _ in range(3):
        assert prefork.agent(tmp_path / "launch.json", 1) is None and prefork.pid is None
        clock.now += 61


def test_it_is_started_when_a_second_job_follows_and_nobody_waits_for_it(
    prefork: PreforkParent, clock: Clock, tmp_path: Path
) -> None:
    assert prefork.agent(tmp_path / "launch.json", 1) is None and prefork.pid is None
    clock.now += 59
    assert prefork.agent(tmp_path / "launch.json", 1) is None and prefork.pid is not None
    first = prefork.pid
    assert prefork.agent(tmp_path / "launch.json", 1) is None and prefork.pid == first


def test_one_that_never_comes_up_is_given_up_for_a_while_and_its_words_are_kept(
    broken: str, clock: Clock, tmp_path: Path
) -> None:
    prefork = PreforkParent(broken, {}, tmp_path / "log", clock)
    assert prefork.agent(tmp_path / "launch.json", 1) is None
    assert prefork.agent(tmp_path / "launch.json", 1) is None and prefork.pid is not None

    def given_up() -> bool:
        assert prefork.agent(tmp_path / "launch.json", 1) is None
        return prefork.pid is None

    eventually(given_up)
    assert (tmp_path / "log").read_text() == "no torch for you\n"
    while prefork.pid is None and clock.now < 5000:
        clock.now += 50
        assert prefork.agent(tmp_path / "launch.json", 1) is None
    assert clock.now == 1600
    prefork.close()


def test_one_that_cannot_be_started_is_no_error(tmp_path: Path) -> None:
    prefork = PreforkParent(str(tmp_path / "no-python"), {}, tmp_path / "log")
    for _ in range(3):
        assert prefork.agent(tmp_path / "launch.json", 1) is None
    assert prefork.pid is None
