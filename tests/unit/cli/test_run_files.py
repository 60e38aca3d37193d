"""Facts in a run directory: progress, how the run ended, and which lines are complete."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.run.run_files import SILENT_S, RunFiles, find_runs, skip_lines, whole_lines
from shoal.core.errors import NotFound


def make(root: Path, records: list[dict[str, Any]] = [], **facts: Any) -> RunFiles:  # noqa: B006
    (root / "spool").mkdir(parents=True, exist_ok=True)
    about = {"id": "abc", "name": "My run!", "created": "2026-01-31T12:00:00Z", "argv": ["t.py"], "world_size": 2}
    (root / "run.json").write_text(json.dumps(about | facts))
    (root / "spool" / "rank-0.jsonl").write_text("".join(json.dumps({"t": 5.0, **r}) + "\n" for r in records))
    made = RunFiles(root)
    for record in records:
        made.ending.note({"t": 5.0, **record})
    return made


STEP = {"k": "s", "i": 7, "v": {}}


@pytest.mark.parametrize(
    ("records", "facts", "status", "reason"),
    [
        ([STEP], {}, "running", None),
        ([STEP, {"k": "f", "i": 7, "status": "finished", "why": None}], {}, "succeeded", None),
        ([STEP, {"k": "f", "i": 7, "status": "failed", "why": "OOM"}], {}, "failed", "OOM"),
        ([STEP, {"k": "f", "i": 7, "status": "stopped", "why": "SIGTERM"}, STEP], {}, "running", None),
        ([STEP], {"attempts": [{"started": "2026-01-31T12:00:00Z"}]}, "running", None),
        ([STEP], {"attempts": [{"ended": "2026-01-31T12:01:00Z", "exit_code": 0}]}, "succeeded", None),
        ([STEP], {"attempts": [{"ended": "2026-01-31T12:01:00Z", "exit_code": 1, "reason": "no"}]}, "failed", "no"),
        ([STEP], {"attempts": [{"ended": "2026-01-31T12:01:00Z", "exit_code": 143}]}, "stopped", None),
        # The SDK was content, but the script failed after it.
        ([{"k": "f", "status": "finished"}], {"attempts": [{"ended": "2026-01-31T12:01:00Z", "exit_code": 3}]}, "failed", None),
        # It was told to stop, saved, and ended well.
        ([{"k": "f", "status": "stopped"}], {"attempts": [{"ended": "2026-01-31T12:01:00Z", "exit_code": 0}]}, "stopped", None),
        # Resumed, and going on: the last word was the attempt's before.
        ([{"k": "f", "status": "finished"}], {"attempts": [{"ended": "x", "exit_code": 0}, {"started": "y"}]}, "running", None),
    ],
)  # fmt: skip
def test_how_a_run_stands(
    tmp_path: Path, records: list[dict[str, Any]], facts: dict[str, Any], status: str, reason: str | None
) -> None:
    state = make(tmp_path, records, **facts).state()
    assert (state.status.value, state.reason) == (status, reason)
    assert (state.ended is None) or state.status.is_terminal


def test_a_run_that_fell_silent_is_held_dead(tmp_path: Path) -> None:
    run = make(tmp_path, [STEP])
    long_ago = time.time() - SILENT_S - 60
    for path in (tmp_path / "run.json", tmp_path / "spool" / "rank-0.jsonl"):
        os.utime(path, (long_ago, long_ago))
    state = run.state()
    assert state.status == "stopped" and "stopped writing records" in str(state.reason)
    assert state.ended is not None and abs(state.ended.timestamp() - long_ago) < 2


def test_its_name_is_made_usable_and_its_id_kept(tmp_path: Path) -> None:
    about = make(tmp_path / "a").describe(None)
    assert (about.run_id, about.name, about.world_size) == ("abc", "My-run", 2)
    assert make(tmp_path / "a").describe("other").name == "other"


def test_a_directory_without_an_id_is_known_by_what_does_not_change(tmp_path: Path) -> None:
    first = make(tmp_path / "a", id=None).describe(None).run_id
    assert make(tmp_path / "a", [STEP], id=None, attempts=[{}]).describe(None).run_id == first
    assert make(tmp_path / "b", id=None).describe(None).run_id != first


def test_runs_are_found_in_a_folder_of_them(tmp_path: Path) -> None:
    for name in ("b", "a"):
        make(tmp_path / name)
    (tmp_path / "other").mkdir()
    assert [p.name for p in find_runs(tmp_path)] == ["a", "b"]
    assert find_runs(tmp_path / "a") == [tmp_path / "a"]
    with pytest.raises(NotFound, match=r"run\.json"):
        find_runs(tmp_path / "other")


def test_only_whole_lines_are_taken_and_counting_goes_on_behind_them(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one\ntwo\nthr")
    [(offset, lines)] = whole_lines(path, 0)
    assert (offset, lines) == (8, [b"one", b"two"])
    assert list(whole_lines(path, offset)) == []
    path.write_bytes(b"one\ntwo\nthree\n")
    assert list(whole_lines(path, offset)) == [(14, [b"three"])]
    assert skip_lines(path, 2) == (8, 2)
    assert skip_lines(path, 99) == (14, 3)
