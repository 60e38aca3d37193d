"""Twelve awkward notebooks, each accounted for cell by cell; those that can run do, and print what the notebook did."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from notebook_corpus import AWKWARD, Awkward, C, text

from shoal.notebooks import convert


@pytest.mark.parametrize("name", AWKWARD)
def test_every_cell_is_accounted_for(name: str) -> None:
    awkward = AWKWARD[name]
    made = convert(awkward.bytes(), f"{name}.ipynb")
    got = {cell.number: (cell.fate, cell.text) for cell in made.receipt.cells}
    assert sorted(got) == list(range(1, len(awkward.cells) + 1))
    for number, cell in enumerate(awkward.cells, 1):
        assert got[number][0] == cell.fate, (number, cell.source, got[number])
        assert cell.says in got[number][1], (number, got[number][1])
    assert made.requirements == awkward.requirements
    assert awkward.notes in " ".join(made.receipt.notes)
    ast.parse(made.script)


@pytest.mark.parametrize("name", [name for name, awkward in AWKWARD.items() if awkward.prints is not None])
def test_what_can_run_prints_what_the_notebook_did(name: str, tmp_path: Path) -> None:
    done = run(AWKWARD[name], tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith(("/", ".", "bin", "boot")) or " " in line]
    wanted = AWKWARD[name].prints or []
    assert [line for line in lines if line in wanted] == wanted, done.stdout


def run(awkward: Awkward, folder: Path) -> subprocess.CompletedProcess[str]:
    made = convert(awkward.bytes(), "train.ipynb")
    for path, content in made.files().items():
        (folder / path).write_text(content)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    script = str(folder / made.script_name)
    return subprocess.run([sys.executable, script], cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def test_huge_outputs_cost_nothing() -> None:
    data = AWKWARD["huge_outputs"].bytes()
    began = time.monotonic()
    made = convert(data, "huge.ipynb")
    assert len(data) > 8_000_000 and len(made.script) < 400
    assert time.monotonic() - began < 5


def test_a_notebook_without_code_is_not_runnable() -> None:
    assert not convert(AWKWARD["no_code"].bytes(), "words.ipynb").receipt.is_runnable
    assert convert(AWKWARD["widgets"].bytes(), "w.ipynb").receipt.is_runnable


@pytest.mark.parametrize(
    ("cells", "where"),
    [
        (
            [text("# first"), C("x = 1", "kept"), C("y = 2\n\n1 / 0\nz = 3", "kept")],
            "In cell 3, line 3, of train.ipynb.",
        ),
        ([C("def f():\n    !true\n    raise KeyError", "turned"), C("%time f()", "turned")], "In cell 1, line 3,"),
        ([C("import asyncio\nawait asyncio.sleep(0)\nassert False", "turned")], "In cell 1, line 3,"),
        ([C("%%time\nx = 1\n1 / 0", "turned")], "In cell 1, line 3,"),
        ([C("%%bash\nexit 3", "turned")], "In cell 1, line 1,"),
        ([C("import json\n%mkdir sub\n%cd sub\n!echo a \\\n b\njson.loads('{')", "turned")], "In cell 1, line 6,"),
    ],
)
def test_an_error_names_its_cell(cells: list[C], where: str, tmp_path: Path) -> None:
    done = run(Awkward(cells), tmp_path)
    assert done.returncode == 1 and "Traceback" in done.stderr
    assert where in done.stderr.splitlines()[-1], done.stderr
