"""`shoal replay`: which capsule, which script, which exit code; real scripts in real processes, without torch."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from clirun import Cli
from stubserver import Stub, reply
from wireviews import job

SCRIPT = """
import json, os, sys
about = {"argv": sys.argv[1:], "cwd": os.getcwd(), "rank": os.environ.get("RANK"), "pdb": os.environ["SHOAL_REPLAY_PDB"],
         "emulated": "sdk/emulate" in os.environ.get("PYTHONPATH", ""),
         "capsule": os.environ["SHOAL_REPLAY"]}
with open(os.environ["SEEN"], "w") as file:
    json.dump(about, file)
outcome = os.environ.get("OUTCOME", "again")
if outcome != "none":
    with open(os.environ["SHOAL_REPLAY_RESULT"], "w") as file:
        json.dump({"outcome": outcome, "step": 12, "error": None}, file)
sys.exit(0 if outcome in ("not again", "none") else 1)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    (tmp_path / "project" / "train.py").write_text(SCRIPT)
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    return tmp_path / "project"


def capsule(run: Path, step: int = 12, rank: int = 0, **changes: Any) -> Path:
    path = run / "checkpoints" / "bug" / f"step-{step:09d}-rank-{rank}"
    path.mkdir(parents=True)
    about = {"step": step, "rank": rank, "entry": ["train.py", "--lr", "1"], "cwd": str(run.parent), "at": f"2026-01-01T{step:02d}",
             "error": {"type": "ValueError", "message": "no"}, **changes}  # fmt: skip
    (path / "capsule.json").write_text(json.dumps(about))
    return path


def seen(here: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((here.parent / "seen").read_text())
    return found


def test_the_newest_failed_step_of_a_run_is_replayed_with_its_own_arguments(
    here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    capsule(here / "run", 3)
    newest = capsule(here / "run", 12)
    assert cli("replay", "run").code == 1
    found = seen(here)
    assert found == {
        "argv": ["--lr", "1"],
        "cwd": str(here),
        "rank": None,
        "pdb": "",
        "emulated": False,
        "capsule": str(newest),
    }


def test_a_step_and_other_arguments_can_be_asked_for(here: Path, cli: Cli) -> None:
    wanted = capsule(here / "run", 3)
    capsule(here / "run", 12)
    cli("replay", "run", "--step", "3", "--pdb", "--emulate-cuda", "--", "--lr", "2", "--step", "9")
    found = seen(here)
    assert found["emulated"]
    assert (found["argv"], found["pdb"], found["capsule"]) == (["--lr", "2", "--step", "9"], "1", str(wanted))


def test_a_step_that_does_not_fail_any_more_gives_0(here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    path = capsule(here / "run")
    monkeypatch.setenv("OUTCOME", "not again")
    assert cli("replay", str(path)).code == 0
    told = json.loads(cli("replay", str(path), "--json").out)
    assert told["outcome"] == "not again" and told["first_error"] == {"type": "ValueError", "message": "no"}


def test_a_script_that_never_comes_to_the_step_is_said_to(
    here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTCOME", "none")
    done = cli("replay", str(capsule(here / "run")))
    assert done.code == 2 and "without reaching the step" in done.err and "Trainer.fit()" in done.err


def test_the_script_is_looked_for_here_and_where_it_ran(here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    path = capsule(here / "run")
    elsewhere = here.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    cli("replay", str(path))
    assert seen(here)["cwd"] == str(here)
    (here / "train.py").unlink()
    done = cli("replay", str(path))
    assert done.code == 3 and "train.py is neither in the current folder nor in" in done.err


def test_what_is_not_there_is_told_with_what_is(here: Path, cli: Cli) -> None:
    capsule(here / "run", 3)
    done = cli("replay", "run", "--step", "4")
    assert done.code == 3 and "Failed steps: step 3 of rank 0." in done.err
    assert cli("replay", "nowhere").code == 3
    (here / "empty").mkdir()
    assert "checkpoints/bug" in cli("replay", "empty").err
    (here / "run" / "checkpoints" / "bug" / "step-000000003-rank-0" / "capsule.json").write_text("[]")
    assert cli("replay", "run").code == 2


def bug(**changes: Any) -> dict[str, Any]:
    at = datetime.now(UTC).isoformat()
    return {"id": "bug_1", "name": "step-000000012-rank-1", "attempt": 1, "node": 0, "rank": 1, "step": 12, "seen": 96,
            "at": at, "error": "NonFiniteLoss", "message": "the loss is nan", "where": "train.py:9 in train_batch",
            "ready": True, "size": 2048, "files": 5, **changes}  # fmt: skip


def test_inspect_shows_failed_steps_and_how_to_replay_them(cli: Cli, stub: Stub) -> None:
    stub.will(reply(body=job("failed", bugs=[bug(), bug(id="bug_2", ready=False)])))
    done = cli("training", "inspect", "hello")
    assert done.code == 0, done.err
    assert "Failed steps" in done.out and "NonFiniteLoss: the loss is nan" in done.out and "uploading" in done.out
    assert "shoal training replay hello" in done.out and "train.py:9 in train_batch" in done.out


def test_a_job_without_such_a_step_is_refused_in_words(cli: Cli, stub: Stub) -> None:
    stub.will(reply(body=job("failed")))
    assert "Only failures inside Trainer.fit() are saved" in cli("training", "replay", "hello").err
    stub.will(reply(body=job("failed", bugs=[bug()])))
    done = cli("training", "replay", "hello", "--step", "7")
    assert done.code == 3 and "Failed steps: step 12 of rank 1" in done.err


def test_the_first_to_fail_of_the_last_attempt_is_chosen() -> None:
    from shoal.cli.replay.app import _choose
    from shoal.core.jobs import JobView

    times = [f"2026-01-01T00:00:0{i}Z" for i in range(4)]
    bugs = [bug(id="old", at=times[3]), bug(id="late", attempt=2, at=times[2]), bug(id="early", attempt=2, at=times[1])]
    view = JobView.model_validate(job("failed", bugs=bugs))
    assert _choose(view, None, None).id == "early"
    assert os.environ.get("SHOAL_REPLAY") is None
