"""The examples of the training framework run as they stand, alone and on two workers, and learn what they are to learn."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from shoal.testing import forks
from shoal.testing.patience import patient

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240


def run(example: str, tmp_path: Path, *args: str, workers: int = 1) -> str:
    """Run an example in a copy, so that nothing remains beside the sources; return its output."""
    folder = tmp_path / example
    if not folder.exists():
        shutil.copytree(ROOT / "examples" / example, folder, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    command = [sys.executable, "train.py", *args]
    if workers > 1:
        command = [sys.executable, "-m", "shoal.cli", "run", "--nproc", str(workers), "--", "train.py", *args]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "SHOAL_HOME": str(tmp_path / "home")}
    modules = forks.TORCH if workers == 1 else forks.CLI
    done = forks.run(command, modules=modules, cwd=folder, env=env, capture_output=True, timeout=patient(TIMEOUT_S))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def values_in(said: str) -> dict[str, float]:
    """Return the values of the last evaluation."""
    found = re.search(r"finished after \d+ \w+: (\{.*\})", said)
    assert found, said
    values: dict[str, float] = ast.literal_eval(found.group(1))
    return values


def test_intent_detection_learns_and_its_best_model_is_put_to_use(tmp_path: Path) -> None:
    said = run("intent", tmp_path)
    assert values_in(said)["accuracy"] > 0.9
    assert "→ book_flight" in said and "→ weather" in said


def test_a_masked_language_model_learns_and_is_tuned_on_by_another_run(tmp_path: Path) -> None:
    first = values_in(run("masked_lm", tmp_path, "--epochs", "3", workers=2))
    assert first["accuracy"] > 0.4
    models = sorted((tmp_path / "masked_lm").rglob("model.pt"))
    (tmp_path / "initial.pt").write_bytes(models[-1].read_bytes())
    shutil.rmtree(tmp_path / "masked_lm")
    tuned = values_in(run("masked_lm", tmp_path, "--epochs", "0.5", "--initial-model", str(tmp_path / "initial.pt")))
    assert tuned["loss"] < first["loss"] + 0.5, "it does not begin at the beginning"


def test_a_small_network_learns_to_tell_shapes(tmp_path: Path) -> None:
    assert values_in(run("vision", tmp_path))["error"] < 0.2
