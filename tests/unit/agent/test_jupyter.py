"""JupyterLab in an environment that has none, and in one where it cannot start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shoal


def ask(python, folder, **env):
    source = str(Path(shoal.__file__).parents[1])
    done = subprocess.run(
        [python, "-m", "shoal.agent.workers.jupyter"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": source, "SHOAL_SPOOL": str(folder), **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """An interpreter with nothing but the standard library."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin/python"


def test_an_environment_without_it_is_told_how_to_get_it(bare, tmp_path):
    said = ask(bare, tmp_path)
    assert said["problem"] == "JupyterLab is not installed in this job's environment."
    assert "`jupyterlab` to requirements.txt" in said["hint"]
    assert not list(tmp_path.glob("jupyter-*"))


def test_one_that_ends_at_once_is_told_with_its_last_words(bare, tmp_path):
    (tmp_path / "jupyterlab.py").write_text("raise SystemExit('no room in here')")
    said = ask(bare, tmp_path)
    assert said["problem"] == "JupyterLab did not start: no room in here"
