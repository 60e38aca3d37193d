"""One list of archive types: help texts, the console and errors name the same ones, and each can be unpacked."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from shoal.store.archives.types import SHOWN, SUFFIXES, archive_kind
from shoal.store.archives.unpack import unpack

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_each_type_is_unpacked(suffix, tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    archive = tmp_path / f"Data{suffix.upper()}"
    if suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as made:
            made.write(tmp_path / "a.txt", "a.txt")
    else:
        modes = {"gz": "w:gz", "bz2": "w:bz2", "xz": "w:xz"}
        mode = next((mode for name, mode in modes.items() if suffix.endswith(name)), "w")
        with tarfile.open(
            archive, {"w": "w", ".tbz2": "w:bz2", ".tgz": "w:gz", ".txz": "w:xz"}.get(suffix, mode)
        ) as made:
            made.add(tmp_path / "a.txt", "a.txt")
    assert archive_kind(archive.name).lower() == suffix
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "a.txt").read_text() == "hello"


def test_help_and_console_name_the_same_types():
    reference = " ".join((ROOT / "docs/reference/cli.md").read_text(encoding="utf-8").split())
    assert reference.count(SHOWN) >= 2
    form = (ROOT / "src/shoal/server/web/templates/_new_job_code.html").read_text(encoding="utf-8")
    assert "{{ archive_types }}" in form and "{{ archive_suffixes | join" in form
    assert all(archive_kind(f"x{name}") for name in SHOWN.replace(" or ", ", ").split(", "))
