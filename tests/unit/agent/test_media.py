"""Files that a job may name as media."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shoal.agent.data.media import MAX_BYTES, logged_media, media_file
from shoal.core.errors import ShoalError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "a.png").write_bytes(b"png")
    return tmp_path


def test_a_plain_file_in_media_is_taken(folder: Path) -> None:
    assert media_file(folder, {"file": "media/a.png"}) == folder / "media" / "a.png"


@pytest.mark.parametrize(
    "file",
    ["/etc/passwd", "media/../../x", "../media/a.png", "a.png", "media/..", "media", "media/deep/a.png", None, "", "media/link",
     "media/pipe"],
)  # fmt: skip
def test_nothing_else_is(folder: Path, file: str | None) -> None:
    (folder / "media" / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "media" / "pipe")
    with pytest.raises((ShoalError, OSError)):
        media_file(folder, {"file": file})


def test_a_folder_that_is_a_link_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "media").symlink_to("/etc")
    with pytest.raises(ShoalError, match="link"):
        media_file(tmp_path, {"file": "media/passwd"})


def test_too_large_is_refused_unread(folder: Path) -> None:
    with (folder / "media" / "big").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ShoalError, match="larger"):
        media_file(folder, {"file": "media/big"})


def test_a_salvage_finds_all_media_with_their_lines(folder: Path) -> None:
    lines = [{"k": "s", "v": {'"k":"m"': 1}}, {"k": "m", "name": "a"}, {"k": "s"}, {"k": "m", "name": "b"}]
    (folder / "rank-3.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines) + '{"k": "m", "name": "torn')
    assert [(rank, line, r["name"]) for rank, line, r in logged_media(folder)] == [(3, 1, "a"), (3, 3, "b")]
