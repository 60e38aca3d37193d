"""`shoal check` and `shoal instrument` on the command line, and the check beside a job that is submitted."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from clirun import Cli
from stubserver import Stub
from test_cli_training import accept, asked

BAD = "import torch\n\nname = input('who?')\ntorch.save({}, 'm.pt')\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(BAD)
    (folder / "fine.py").write_text("import torch\n\nmodel = torch.nn.Linear(1, 1)\n")
    monkeypatch.chdir(folder)
    return folder


def test_findings_are_shown_with_line_caret_reason_and_remedy(cli: Cli, here: Path) -> None:
    ran = cli("check", "train.py")
    assert ran.code == 1
    lines = ran.out.splitlines()
    assert lines[0] == "train.py:3:8: error: input waits for keyboard input. [asks-for-input]"
    assert lines[1:3] == ["  3 | name = input('who?')", "    |        ^^^^^^^^^^^^^"]
    assert lines[3].startswith("  why: ") and lines[4].startswith("  fix: ")
    assert "1 file: 1 error, 1 warning." in ran.err


def test_json_has_all_of_it(cli: Cli, here: Path) -> None:
    view = json.loads(cli("check", "train.py", "--json").out)
    assert [(f["rule"], f["line"], f["column"]) for f in view["findings"]] == [
        ("asks-for-input", 3, 8),
        ("outside-output", 4, 16),
    ]
    assert view["entry"] == "train.py" and view["files"] == 1


def test_exit_codes_tell_errors_from_warnings_from_wrong_usage(cli: Cli, here: Path) -> None:
    (here / "train.py").write_text("import torch\ntorch.save({}, 'm.pt')\n")
    (here / "elsewhere").mkdir()
    assert cli("check", "train.py").code == 0
    assert cli("check", "train.py", "--strict").code == 1
    assert cli("check", ".").code == 0
    assert cli("check", "fine.py", "--strict").code == 0
    for wrong in (
        ["trian.py"],
        ["train.py", "--nodes", "0"],
        ["train.py", "--accels", "0"],
        ["train.py", "--dir", "elsewhere"],
        [],
    ):
        ran = cli("check", *wrong)
        assert ran.code == 2, wrong
        assert "hint:" in ran.err or wrong[-1:] == ["0"] or not wrong
    assert "Did you mean 'train.py'" in cli("check", "trian.py").err


def test_words_after_the_dashes_are_the_scripts(cli: Cli, here: Path) -> None:
    (here / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args()\n"
    )
    assert cli("check", "train.py", "--", "--lr", "1").code == 0
    assert "has no option --rate" in cli("check", "train.py", "--", "--rate", "1").out


def test_a_spec_is_looked_at_as_the_job_it_asks_for(cli: Cli, here: Path) -> None:
    (here / "fine.py").write_text("import torch\nx = torch.load('/input/a/x.pt').to('cuda:0')\n")
    spec = {"name": "x", "entry": ["fine.py"], "accels": 2, "datasets": []}
    (here / "job.json").write_text(json.dumps({"spec": spec}))
    view = json.loads(cli("check", "job.json", "--json").out)
    assert [f["rule"] for f in view["findings"]] == ["missing-dataset", "fixed-device"]
    (here / "job.json").write_text(json.dumps(spec | {"entry": ["gone.py"]}))
    assert cli("check", "job.json").code == 2
    (here / "job.json").write_text("{")
    assert "not JSON" in cli("check", "job.json").err


def test_a_submitted_job_is_warned_of_and_goes_in_all_the_same(cli: Cli, here: Path, stub: Stub) -> None:
    accept(stub)
    ran = cli("training", "run", "first", "--nodes", "2", "--dataset", "d", "--", "train.py", "--lr", "a b")
    assert ran.code == 0
    assert "warning: train.py:3: input waits for keyboard input. [asks-for-input]" in ran.err
    assert "shoal check train.py --nodes 2 --dataset d -- --lr 'a b'" in ran.err
    assert asked(stub, "/jobs")["entry"] == ["train.py", "--lr", "a b"]
    quiet = cli("training", "run", "second", "--no-check", "--", "train.py")
    assert quiet.code == 0 and "warning" not in quiet.err
    with zipfile.ZipFile(here / "code.zip", "w") as archive:
        archive.write(here / "train.py", "train.py")
    packed = cli("training", "run", "packed", "--zip", "code.zip", "--", "train.py")
    assert (
        packed.code == 0
        and "asks-for-input" in packed.err
        and "fix: " in packed.err
        and "shoal check" not in packed.err
    )
    single = cli("training", "run", "third", "--file", "train.py")
    assert single.code == 0 and "asks-for-input" in single.err


def test_a_check_that_breaks_stops_no_job(cli: Cli, here: Path, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.check import runner

    def broken(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    accept(stub)
    monkeypatch.setattr(runner, "read_program", broken)
    ran = cli("training", "run", "first", "--", "train.py")
    assert ran.code == 0 and "not checked" in ran.err


LOOP = """import torch

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1)
for step in range(3):
    loss = model(torch.ones(1)).mean()
    loss.backward()
    optimizer.step()
"""


def test_instrument_writes_a_copy_and_shows_what_is_new(cli: Cli, here: Path) -> None:
    (here / "loop.py").write_text(LOOP)
    ran = cli("instrument", "loop.py")
    assert ran.code == 0
    assert "+    run.step(loss=loss)" in ran.out.splitlines()
    assert (here / "loop.py").read_text() == LOOP
    assert "run.step(loss=loss)" in (here / "loop_shoal.py").read_text()
    assert cli("check", "loop_shoal.py").code == 0


def test_instrument_writes_over_nothing_unless_told(cli: Cli, here: Path) -> None:
    (here / "loop.py").write_text(LOOP)
    (here / "loop_shoal.py").write_text("mine")
    refused = cli("instrument", "loop.py")
    assert refused.code == 4 and "--force" in refused.err
    assert (here / "loop_shoal.py").read_text() == "mine"
    assert cli("instrument", "loop.py", "--diff").code == 0
    assert (here / "loop_shoal.py").read_text() == "mine"
    assert cli("instrument", "loop.py", "-o", "loop.py", "--force").code == 0
    assert "import shoal" in (here / "loop.py").read_text()
    assert cli("instrument", "loop.py", "-o", "else.py").code == 4, "it is already instrumented"
    assert sorted(p.name for p in here.iterdir()) == ["fine.py", "loop.py", "loop_shoal.py", "train.py"]


def test_instrument_says_what_it_cannot_do(cli: Cli, here: Path) -> None:
    ran = cli("instrument", "fine.py")
    assert ran.code == 4 and "no training loop" in ran.err and "hint:" in ran.err
    assert cli("instrument", "gone.py").code == 2
    assert cli("instrument", "notes.txt").code == 2
    assert not (here / "fine_shoal.py").exists()
