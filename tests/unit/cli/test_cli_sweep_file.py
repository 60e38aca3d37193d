"""A sweep from a YAML file: its keys are the options, and what is typed comes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clirun import Cli, Ran

FILE = """
name: nightly
entry: train.py --epochs 3
param:
  lr: [5e-4, 7E-4, 1]
  hidden: {low: 100, high: 300, log: true, whole: true}
  size: 1:3
  word: {values: [no, yes], group: g}
  depth: {values: [2, 4], group: g}
search: asha
trials: 20
parallel: 2
time-limit: 90m
env: {X: 1, Y: 2025-01-31}
dry-run: true
"""


@pytest.fixture
def preview(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(text: str, *words: str) -> Ran:
        Path("sweep.yaml").write_text(text)
        return cli("sweep", "run", *words[:1], "--file", "sweep.yaml", "--json", *words[1:])

    return run


def test_everything_may_stand_in_the_file(preview: Any, cli: Cli) -> None:
    ran = preview(FILE)
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert (told["trials"], told["search"]) == (20, "asha")
    assert list(told["first"][0]) == ["lr", "hidden", "size", "word", "depth"]
    for params in told["first"]:
        assert params["lr"] in (5e-4, 7e-4, 1)
        assert isinstance(params["hidden"], int) and 100 <= params["hidden"] <= 300 and params["size"] in (1, 2, 3)
        assert (params["word"], params["depth"]) in (("no", 2), ("yes", 4))
    assert "nightly-0  train.py --epochs 3 --lr" in cli("sweep", "run", "--file", "sweep.yaml").out


def test_what_is_typed_comes_first(preview: Any, cli: Cli) -> None:
    told = json.loads(
        preview(FILE, "mine", "--trials", "4", "--param", "lr=9", "--param", "more=1", "--", "other.py").out
    )
    assert told["trials"] == 4
    assert list(told["first"][0]) == ["lr", "hidden", "size", "word", "depth", "more"]
    assert {p["lr"] for p in told["first"]} == {9}
    said = cli("sweep", "run", "mine", "--file", "sweep.yaml", "--", "other.py", "--x").out
    assert "  mine-0  other.py --x --lr" in said


def test_the_script_may_be_typed_and_the_name_stand_in_the_file(cli: Cli, preview: Any) -> None:
    preview(FILE)
    assert "  nightly-0  other.py --lr" in cli("sweep", "run", "--file", "sweep.yaml", "--", "other.py").out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trails: 20", "has an unknown option 'trails'. Did you mean 'trials'?"),
        ("env: [A=1]\nenv: [B=2]", "'env' is given twice"),
        ("- a\n- b", "should be a mapping of options"),
        ("param: {lr: [1, 2", "is not YAML"),
        ("param: {lr: {low: 3, high: 1}}", "lr: 3:1 is not a range"),
        ("param: {lr: []}", "lr: List should have at least 1 item"),
        ("trials: {a: 1}", "trials should be a single value"),
        ("trials: soon", "soon"),
        ("search: guess", "guess"),
    ],
)
def test_what_is_wrong_in_the_file_is_told(preview: Any, text: str, message: str) -> None:
    ran = preview(text, "x", "--dry-run", "--param", "other=1", "--", "train.py")
    assert ran.code == 2 and message in ran.err, ran.err


def test_a_file_that_is_not_there_is_told_with_and_without_a_name(cli: Cli, tmp_path: Path) -> None:
    for words in (["mine"], []):
        ran = cli("sweep", "run", *words, "--file", str(tmp_path / "no.yaml"), "--param", "a=1", "--", "t.py")
        assert ran.code == 2 and "There is no" in ran.err and "hint: shoal sweep run" in ran.err


def test_a_script_given_as_a_file_is_no_sweep_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.py").write_text("print(1)\n")
    ran = cli("sweep", "run", "mine", "--file", "one.py", "--param", "a=1,2", "--dry-run")
    assert ran.code == 0 and "mine-1  one.py --a 2" in ran.out
