"""Files that `shoal init` writes: templates train, by themselves and by their project file, and a project runs as a job."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import get_args

import pytest

from shoal.cli.init.app import Template
from shoal.testing import forks
from shoal.testing.live import LiveServer
from shoal.testing.patience import patient

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
PRELOADS = False
NEEDS = {"hf": "transformers", "lightning": "lightning"}
SHOAL = [sys.executable, "-m", "shoal.cli"]


def run(command: list[str], modules: tuple[str, ...], folder: Path) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    env |= {"OMP_NUM_THREADS": "1", "SHOAL_HOME": str(folder / "home"), "SHOAL_NO_AUTOSTART": "1"}
    done = forks.run(command, modules=modules, cwd=folder, env=env, capture_output=True, timeout=patient(120))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return str(done.stdout) + str(done.stderr)


@pytest.mark.parametrize("template", get_args(Template))
def test_a_template_trains(template: str, tmp_path: Path) -> None:
    if template in NEEDS:
        pytest.importorskip(NEEDS[template])
    run([*SHOAL, "init", "--template", template], forks.CLI, tmp_path)
    run([sys.executable, "train.py", "--steps", "5"], forks.TORCH, tmp_path)
    (spool,) = tmp_path.rglob("rank-0.jsonl")
    steps = [record for record in map(json.loads, spool.read_text().splitlines()) if record["k"] == "s"]
    assert steps[-1]["i"] == 5 and any("loss" in name for name in steps[-1]["v"]), steps


def test_a_new_project_trains_on_two_workers_by_its_file(tmp_path: Path) -> None:
    run([*SHOAL, "init", "--template", "pytorch"], forks.CLI, tmp_path)
    said = run([*SHOAL, "run", "--profile", "debug", "--nproc", "2", "--", "--batch-size", "4"], forks.CLI, tmp_path)
    assert "Using shoal.yaml, profile debug." in said and "step 20/20" in said


def test_a_project_is_run_as_a_job_again_and_again(server: LiveServer, tmp_path: Path) -> None:
    folder = tmp_path / "gpt"
    folder.mkdir()
    (folder / "train.py").write_text("import os, sys\nprint('got', sys.argv[1:], os.environ['A'])\n")
    server.cli("init", "--yes", cwd=folder)
    with (folder / "shoal.yaml").open("a") as file:
        file.write("    env: {A: debug}\nenv: {A: file}\n")
    for words, said in (([], "got [] file"), (["--profile", "debug", "--", "--lr", "1"], "got ['--lr', '1'] debug")):
        assert said in server.cli("training", "run", "-f", *words, cwd=folder).stdout
    assert [job["name"] for job in server.json("training", "list")] == ["gpt-2", "gpt"]
