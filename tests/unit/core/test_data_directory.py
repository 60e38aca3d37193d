"""The data directory is its owner's only, however it was made."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shoal.core.private import close_folder
from shoal.core.settings import Layout


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def lax_umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_new_data_directory_is_closed(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "home")
    layout.close()
    assert {mode(p) for p in (layout.root, *layout.root.iterdir())} == {0o700}
    assert {"server", "store", "nodes", "cache"} <= {p.name for p in layout.root.iterdir()}


def test_one_of_an_older_version_is_closed_and_keeps_what_it_holds(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "home")
    for folder in (layout.store_dir / "chunks", layout.nodes_dir / "att_1.0", layout.root / "swarms", layout.cache_dir):
        folder.mkdir(parents=True)
        (folder / "kept").write_text("x")
    layout.close()
    for folder in (layout.root, layout.store_dir, layout.nodes_dir, layout.root / "swarms", layout.cache_dir):
        assert mode(folder) == 0o700
    assert (layout.store_dir / "chunks" / "kept").read_text() == "x"


def test_a_store_on_another_disk_is_closed_where_it_is(tmp_path: Path) -> None:
    layout, disk = Layout(tmp_path / "home"), tmp_path / "disk" / "store"
    disk.mkdir(parents=True)
    layout.root.mkdir()
    layout.store_dir.symlink_to(disk)
    layout.close()
    assert mode(disk) == 0o700 and layout.store_dir.is_symlink()


def test_a_group_that_shares_the_directory_on_purpose_keeps_it(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "home")
    layout.root.mkdir()
    layout.root.chmod(0o2775)
    layout.close()
    assert mode(layout.root) == 0o2770


def test_what_everybody_may_write_to_stays_as_it_is(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    close_folder(shared)
    assert mode(shared) == 0o1777
    close_folder(tmp_path / "not-there")
