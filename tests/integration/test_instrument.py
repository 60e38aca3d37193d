"""Four plain scripts, instrumented, really run and report: a loop of one's own, the Hugging Face Trainer, Accelerate, Lightning."""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.check.instrument.writer import instrument
from shoal.testing import forks
from shoal.testing.patience import patient

pytest.importorskip("torch")
pytestmark = [pytest.mark.integration, pytest.mark.torch]

PLAIN = Path(__file__).parent / "plain"
TIMEOUT_S = 240
EXPECTED = {
    "custom_loop": ("loss", list(range(1, 31))),
    "hf_trainer": ("train/loss", [2, 4, 6]),
    "accelerate_loop": ("loss", list(range(1, 17))),
    "lightning_trainer": ("train/loss", [1, 2, 4, 6, 8, 10, 12, 14, 16]),
}
"""Script → the metric it reports, and the steps it does so for."""
MODULES = {"custom_loop": forks.TORCH, "lightning_trainer": forks.LIGHTNING}


def python(*words: str, folder: Path, modules: tuple[str, ...]) -> str:
    """Run a script and return its output."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    done = forks.run(command, modules=modules, cwd=folder, env=env, capture_output=True, timeout=patient(TIMEOUT_S))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def instrumented(name: str, folder: Path) -> None:
    """Write the instrumented copy of a script, after making sure that little is new in it and nothing gone."""
    text = (PLAIN / f"{name}.py").read_text(encoding="utf-8")
    done = instrument("train.py", text).text
    old, new = text.splitlines(), done.splitlines()
    changes = [line for line in difflib.ndiff(old, new) if line[:2] in ("- ", "+ ")]
    assert 2 <= len(changes) <= 6
    left = iter(done)
    assert all(letter in left for letter in text), "the script is no longer all there"
    (folder / "train.py").write_text(done, encoding="utf-8")


def records(folder: Path) -> list[dict[str, Any]]:
    [path] = folder.glob("shoal-runs/*/**/rank-0.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", EXPECTED)
def test_an_instrumented_script_runs_and_reports(name: str, tmp_path: Path) -> None:
    instrumented(name, tmp_path)
    python("train.py", folder=tmp_path, modules=MODULES.get(name, forks.HUGGING_FACE))
    metric, steps = EXPECTED[name]
    told = {r["i"]: r["v"][metric] for r in records(tmp_path) if r["k"] == "s" and metric in r["v"]}
    assert sorted(told) == steps
    assert all(0 < value < 100 for value in told.values())
    [end] = [r for r in records(tmp_path) if r["k"] == "f"]
    assert end["status"] == "finished" and end["i"] == steps[-1]


def test_an_instrumented_loop_trains_one_model_on_two_workers_and_saves_it(tmp_path: Path) -> None:
    instrumented("custom_loop", tmp_path)
    said = python("-m", "shoal.cli", "run", "--nproc", "2", "train.py", folder=tmp_path, modules=forks.CLI)
    accuracies = sorted(re.findall(r"accuracy [\d.]+", said))
    assert len(accuracies) == 6 and accuracies[::2] == accuracies[1::2], said
    steps = [r["i"] for r in records(tmp_path) if r["k"] == "s"]
    assert steps == list(range(1, 16)), "ten batches an epoch, dealt to two workers"
    assert list(tmp_path.glob("shoal-runs/*/**/model*.pt"))
