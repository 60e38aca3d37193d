"""Checkpoints on disk: nothing is visible before it is durable, and what was never finished pushes nothing out."""

import os
from pathlib import Path

import pytest

from shoal.sdk.saving import extras, layout


@pytest.fixture
def calls(monkeypatch):
    """(what, file or folder) of every sync and rename, in order."""
    done, fsync, rename = [], os.fsync, Path.rename

    def noted_sync(fd):
        fsync(fd)
        done.append(("sync", Path(f"/proc/self/fd/{fd}").readlink()))

    def noted_rename(path, target):
        done.append(("rename", path))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    return done


def test_a_checkpoint_is_renamed_once_all_of_it_is_on_the_disk_and_its_folder_is_synced_after(tmp_path, calls):
    partial, final = tmp_path / ".tmp-step-000000001", tmp_path / layout.name_of(1)
    partial.mkdir()
    layout.write_about(partial, {"step": 1, "files": {}})
    layout.commit(partial, final)
    assert calls == [("sync", partial / layout.ABOUT), ("sync", partial), ("rename", partial), ("sync", tmp_path)]
    assert layout.verify(final)["step"] == 1


def test_files_that_travel_along_are_on_the_disk_before_they_are_moved(tmp_path, calls):
    (tmp_path / "vocab.txt").write_text("a")
    extras.stage(tmp_path / "out", [tmp_path / "vocab.txt"])
    half = tmp_path / "out" / ".extra" / ".half-vocab.txt"
    assert calls == [("sync", half), ("rename", half)]


def test_what_was_never_finished_pushes_no_whole_checkpoint_out(tmp_path):
    for step in (1, 2, 3):
        (tmp_path / layout.name_of(step)).mkdir()
    (tmp_path / layout.name_of(1) / layout.ABOUT).write_text("{}")
    layout.prune(tmp_path, 1)
    assert (tmp_path / layout.name_of(1) / layout.ABOUT).exists()


def test_the_newest_whole_one_stays_though_none_is_to_be_kept(tmp_path):
    for step in (1, 2):
        (tmp_path / layout.name_of(step)).mkdir()
        (tmp_path / layout.name_of(step) / layout.ABOUT).write_text("{}")
    layout.prune(tmp_path, 0)
    assert [path.name for path in layout.saved_in(tmp_path)] == [layout.name_of(2)]
