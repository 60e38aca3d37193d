"""Checkpoints on disk: nothing is visible before it is durable, and what was never finished pushes nothing out."""

import contextlib
import os
import shutil
import threading
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


def test_a_folder_staged_again_while_the_writer_takes_it_along_is_whole(tmp_path, monkeypatch):
    source, out, partial = tmp_path / "vocab", tmp_path / "out", tmp_path / "out" / ".tmp-step-000000001"
    source.mkdir()
    for name in ("a", "b", "c"):
        (source / name).write_text("1")
    extras.stage(out, [source])
    partial.mkdir()
    remove, taken = shutil.rmtree, threading.Thread(target=extras.move_into, args=(out, partial))

    def slow_remove(path, **options):
        """The writer comes after the first of three files was deleted."""
        if (Path(path) / "a").exists():
            (Path(path) / "a").unlink()
        if taken.ident is None:
            taken.start()
            taken.join(0.5)
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", slow_remove)
    for name in ("a", "b", "c"):
        (source / name).write_text("2")
    extras.stage(out, [source])
    if taken.ident is None:  # nothing was deleted where the writer could see it
        taken.start()
    taken.join()
    assert sorted(path.name for path in (partial / "vocab").iterdir()) == ["a", "b", "c"]
    assert {path.read_text() for path in (partial / "vocab").iterdir()} in ({"1"}, {"2"})
    assert [path.name for path in (out / ".extra").iterdir()] in ([], ["vocab"])


def test_a_crash_while_a_checkpoint_of_the_same_step_is_replaced_leaves_one_of_the_two(tmp_path, monkeypatch):
    class Killed(BaseException):
        """The end of the process."""

    remove, rename, final = shutil.rmtree, Path.rename, tmp_path / layout.name_of(1)

    def save(note):
        partial = tmp_path / ".tmp-step-000000001"
        partial.mkdir()
        layout.write_about(partial, {"step": 1, "files": {}, "note": note})
        layout.commit(partial, final)

    def die_once_moved(path, target):
        rename(path, target)
        if path == final:
            raise Killed

    def die_once_removed(path, **options):
        remove(path, **options)
        raise Killed

    save("first")
    monkeypatch.setattr(Path, "rename", die_once_moved)
    monkeypatch.setattr(shutil, "rmtree", die_once_removed)
    with contextlib.suppress(Killed):
        save("second")
    monkeypatch.undo()
    assert layout.verify(final)["note"] in ("first", "second")
