"""The exit code of a worker counts for more than what its SDK wrote before it ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.agent.sdk_records.progress import RunProgress
from shoal.agent.sdk_records.run_end import correct_end
from shoal.core.jobs import unfinished

STEP = {"t": 1.0, "n": 0, "k": "s", "i": 1, "v": {"loss": 1.0}}
DONE = {"t": 2.0, "n": 1, "k": "p", "i": 1, "total": 4, "epoch": None, "epochs": None, "done": True}
FINISHED = {"t": 2.0, "n": 2, "k": "f", "i": 1, "status": "finished", "why": None}


def write(folder: Path, *records: dict[str, Any], rank: int = 0, torn: str = "") -> None:
    (folder / f"rank-{rank}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records) + torn)


def added(folder: Path, count: int, rank: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines()[count:] if line]


def test_a_run_that_says_it_finished_and_whose_worker_failed_is_recorded_as_failed(tmp_path: Path) -> None:
    write(tmp_path, STEP, DONE, FINISHED)
    correct_end(tmp_path, 1)
    (last,) = added(tmp_path, 3)
    assert (last["k"], last["i"], last["status"], last["why"]) == ("f", 1, "failed", "exit code 1")


def test_the_reason_is_the_one_that_is_known(tmp_path: Path) -> None:
    write(tmp_path, STEP, DONE)
    correct_end(tmp_path, -9, "killed by SIGKILL (out of memory?)")
    (last,) = added(tmp_path, 2)
    assert (last["status"], last["why"]) == ("failed", "killed by SIGKILL (out of memory?)")


def test_a_trial_that_skips_itself_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, STEP, DONE, FINISHED)
    correct_end(tmp_path, 77)
    assert added(tmp_path, 3)[0]["status"] == "skipped"


@pytest.mark.parametrize(
    ("records", "code"),
    [
        ([STEP, DONE, FINISHED], 0),
        ([STEP, DONE, {**FINISHED, "status": "stopped"}], 143),
        ([STEP, DONE, {**FINISHED, "status": "failed", "why": "ValueError: x"}], 1),
        ([DONE, FINISHED, STEP], 1),
        ([STEP], 1),
        ([], 1),
    ],
)
def test_what_is_true_already_is_left_alone(tmp_path: Path, records: list[dict[str, Any]], code: int) -> None:
    write(tmp_path, *records)
    correct_end(tmp_path, code)
    assert added(tmp_path, len(records)) == []


def test_a_line_that_was_torn_by_a_kill_does_not_swallow_the_correction(tmp_path: Path) -> None:
    write(tmp_path, STEP, DONE, FINISHED, torn='{"t": 3.0, "k"')
    correct_end(tmp_path, 1)
    assert added(tmp_path, 4)[-1]["status"] == "failed"


def test_a_link_in_the_place_of_the_records_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text(json.dumps(FINISHED) + "\n")
    (tmp_path / "rank-0.jsonl").symlink_to(other)
    correct_end(tmp_path, 1)
    assert other.read_text() == json.dumps(FINISHED) + "\n"


def test_a_failed_run_is_not_complete() -> None:
    told = RunProgress()
    for record in (STEP, DONE, FINISHED):
        told.note(record)
    assert told.report()["fraction"] == 1.0  # type: ignore[index]
    told.note({**FINISHED, "status": "failed"})
    assert told.report()["fraction"] == 0.25  # type: ignore[index]


def test_a_failed_job_is_never_at_100_percent() -> None:
    assert unfinished({"step": 4, "total": 4, "fraction": 1.0, "eta_s": 0.0})["fraction"] == 0.99
    assert unfinished({"step": 1, "total": 4, "fraction": 0.25})["fraction"] == 0.25
    assert unfinished({"step": 1, "fraction": None}) == {"step": 1, "fraction": None}
