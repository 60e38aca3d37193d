"""Capsules of failed steps are told from checkpoints, and only plain files of them are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.agent.data.bug_capsules import capsule_files, capsules_in, holds_capsules, wire_body
from shoal.agent.data.checkpoint_uploader import candidates
from shoal.agent.data.media import logged_media
from shoal.cli.run.run_dir import RunDir
from shoal.core.bugs import BugCommit
from shoal.core.errors import ShoalError

NAME = "step-000000012-rank-1"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    capsule = tmp_path / "bug" / NAME
    capsule.mkdir(parents=True)
    (capsule / "capsule.json").write_text("{}")
    (capsule / "model.pt").write_bytes(b"weights")
    return tmp_path


def test_the_folder_of_capsules_is_no_checkpoint(output: Path) -> None:
    (output / "bug" / ".tmp-step-000000013-rank-0").mkdir()
    (output / "bug" / ".trash-.tmp-step-000000013-rank-0-4711").mkdir()
    (output / "good").mkdir()
    (output / "good" / "model.bin").write_bytes(b"x")
    assert holds_capsules(output / "bug")
    assert [name for name, _ in candidates(output)] == ["good"]


def test_a_checkpoint_that_is_called_bug_is_one(tmp_path: Path) -> None:
    (tmp_path / "bug").mkdir()
    (tmp_path / "bug" / "model.bin").write_bytes(b"x")
    assert not holds_capsules(tmp_path / "bug")
    assert [name for name, _ in candidates(tmp_path)] == ["bug"]


def test_a_local_run_does_not_go_on_from_a_capsule(output: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.root.mkdir()
    (output / "bug").rename(run.root / "moved")
    run.checkpoints.mkdir()
    (run.root / "moved").rename(run.checkpoints / "bug")
    assert run.newest_checkpoint() is None
    assert run.newest_capsule() == run.checkpoints / "bug" / NAME


def test_whole_capsules_are_listed_by_step(output: Path) -> None:
    for name in ("step-000000003-rank-0", "step-000000004-rank-0", ".tmp-step-000000005-rank-0"):
        (output / "bug" / name).mkdir()
    (output / "bug" / "step-000000003-rank-0" / "capsule.json").write_text("{}")
    assert [p.name for p in capsules_in(output / "bug")] == ["step-000000003-rank-0", NAME]
    assert capsules_in(output / "nothing") == []


@pytest.mark.parametrize("name", ["../bug", "step-1-rank-0/../..", "/etc", "", None, "step-x-rank-0", "step-7-rank-0"])
def test_nothing_but_a_capsule_is_read(output: Path, name: str | None) -> None:
    (output / "bug" / "step-7-rank-0").symlink_to("/etc")
    with pytest.raises((ShoalError, OSError)):
        capsule_files(output, {"name": name})


def test_links_in_a_capsule_are_left_out(output: Path) -> None:
    (output / "bug" / NAME / "passwd").symlink_to("/etc/passwd")
    assert sorted(capsule_files(output, {"name": NAME})) == ["capsule.json", "model.pt"]


def test_what_is_told_fits_the_wire_whatever_the_record_says() -> None:
    record = {"k": "b", "t": 1.0, "i": 12, "seen": "many", "name": NAME, "error": "E" * 900, "text": "x" * 9000}
    body = BugCommit.model_validate(wire_body(1, 7, record, None))
    assert (body.step, body.seen, len(body.error), len(body.message)) == (12, None, 200, 2000)


def test_a_salvage_finds_bugs_beside_media(tmp_path: Path) -> None:
    lines = [{"k": "s"}, {"k": "b", "name": NAME}, {"k": "m", "name": "a"}]
    (tmp_path / "rank-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(n, r["k"]) for _, n, r in logged_media(tmp_path)] == [(1, "b"), (2, "m")]
