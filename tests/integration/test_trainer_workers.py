"""The Trainer on two real workers: the same training as on one, evaluations of any length, kill -9 and on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.core.ports import free_port
from shoal.testing.forks import Fork
from shoal.testing.patience import patient

pytestmark = [pytest.mark.integration, pytest.mark.torch]

WORKER = Path(__file__).with_name("trainer_worker.py")


def start(scenario: str, folder: Path, world: int) -> list[Fork]:
    folder.mkdir(exist_ok=True)
    return start_ranks([WORKER, scenario, folder], folder, world)


def start_ranks(words: list[Any], folder: Path, world: int) -> list[Fork]:
    port = free_port()
    ranks = []
    for rank in range(world):
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        ranks.append(
            Fork([sys.executable, *words], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )
    return ranks


def finish(ranks: list[Fork], *, expect: int = 0) -> str:
    said = [process.communicate(timeout=patient(120))[0] for process in ranks]
    assert all((process.returncode == 0) == (expect == 0) for process in ranks), "\n".join(said)
    return "\n".join(said)


def results(folder: Path, world: int) -> list[Any]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world)]


def close(one: list[list[float]], other: list[list[float]]) -> bool:
    return [v for pair in one for v in pair] == pytest.approx([v for pair in other for v in pair], rel=1e-4)


def test_two_workers_train_as_one_does_whatever_the_way(tmp_path):
    finish(start("several", tmp_path / "one", 1))
    finish(start("several", tmp_path / "two", 2))
    (alone,) = results(tmp_path / "one", 1)
    first, second = results(tmp_path / "two", 2)
    for way in ("plain", "accumulated", "fsdp"):
        assert first[way]["reason"] == "finished"
        assert first[way] == second[way]
        assert close(first[way]["losses"], alone["plain"]["losses"]), way
        for (seen, values), (at, expected) in zip(
            first[way]["evaluations"], alone["plain"]["evaluations"], strict=True
        ):
            assert (seen, values["loss"]) == pytest.approx((at, expected["loss"]), rel=1e-4)
    assert close(alone["accumulated"]["losses"], alone["plain"]["losses"])
    for found in (first, second):
        assert (found["uneven"]["reason"], found["uneven"]["steps"]) == ("out_of_data", 4)


def test_an_evaluation_may_take_longer_than_any_collective(tmp_path):
    finish(start("long_evaluation", tmp_path, 2))
    first, second = results(tmp_path, 2)
    assert first == second
    assert first["reason"] == "finished"
    assert len(first["evaluations"]) == 1


def test_the_timeout_of_that_test_is_in_force(tmp_path):
    """A step that makes the other worker wait in a collective for as long breaks the run."""
    said = finish(start("long_step", tmp_path, 2), expect=1)
    assert "timed out" in said.lower() or "timeout" in said.lower() or "connection closed" in said.lower()


def test_a_run_killed_at_its_worst_goes_on_as_if_it_had_not_been(tmp_path):
    finish(start("slow", tmp_path / "whole", 2))
    ranks = start("slow", tmp_path / "cut", 2)
    at = tmp_path / "cut" / "run" / "at0"
    deadline = time.monotonic() + patient(60)
    while not (at.exists() and int(at.read_text() or 0) >= 7):
        assert time.monotonic() < deadline
        assert ranks[0].poll() is None, ranks[0].communicate()[0]
        time.sleep(0.01)
    for process in ranks:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not (tmp_path / "cut" / "rank0.json").exists()
    finish(start("slow", tmp_path / "cut", 2))
    assert results(tmp_path / "cut", 2) == results(tmp_path / "whole", 2)


def test_the_script_of_the_guide_learns_on_two_workers(tmp_path):
    page = (Path(__file__).resolve().parents[2] / "docs/howto/trainer.md").read_text()
    script = tmp_path / "train.py"
    script.write_text(page.split("```python\n")[1].split("```")[0])
    said = finish(start_ranks([script], tmp_path, 2))
    best = float(said.rsplit("best=", 1)[1].split(")")[0])
    assert best < 0.06
    assert list(tmp_path.glob("shoal-runs/*/figures/train.train.loss.svg"))
