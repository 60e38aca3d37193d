from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from shoal.store.ignore import scan
from shoal.store.known import KnownFiles
from shoal.store.local import LocalStore
from shoal.store.pack import Entry, pack_tree
from shoal.store.transfer import push


@pytest.fixture
def aged(mixed_tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tree, as if written a while ago."""
    later = time.time_ns() + 10_000_000_000
    monkeypatch.setattr("shoal.store.known.time.time_ns", lambda: later)
    return mixed_tree


@pytest.fixture
def known(tmp_path: Path) -> KnownFiles:
    return KnownFiles(tmp_path / "cache" / "known.db")


def test_files_that_are_as_they_were_are_not_read_again(aged: Path, known: KnownFiles) -> None:
    first = pack_tree(aged, known=known)
    assert not first.unread
    seen: list[int] = []
    second = pack_tree(aged, known=known, progress=seen.append)
    assert second.manifest == first.manifest
    assert second.where == first.where
    assert len(second.unread) == len(first.manifest.files) - 1  # the empty file has nothing to know
    assert sum(seen) == first.manifest.size


@pytest.mark.parametrize("how", ["longer", "same size", "same size and mtime", "replaced"])
def test_a_file_that_changed_in_any_way_is_read_again(aged: Path, known: KnownFiles, how: str) -> None:
    pack_tree(aged, known=known)
    path = aged / "large.bin"
    before = path.stat()
    data = path.read_bytes()
    if how == "longer":
        path.write_bytes(data + b"x")
    elif how == "replaced":
        other = aged / "new"
        other.write_bytes(b"x" + data[1:])
        os.utime(other, ns=(before.st_mtime_ns, before.st_mtime_ns))
        other.rename(path)
    else:
        path.write_bytes(b"x" + data[1:])
        if how == "same size and mtime":
            os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))
    packed = pack_tree(aged, known=known)
    assert "large.bin" not in packed.unread
    assert packed.manifest == pack_tree(aged).manifest


def test_a_file_written_a_moment_ago_is_not_trusted(mixed_tree: Path, known: KnownFiles) -> None:
    pack_tree(mixed_tree, known=known)
    assert not pack_tree(mixed_tree, known=known).unread


@pytest.mark.parametrize("harm", [b"garbage" * 2000, b""])
def test_a_damaged_cache_costs_nothing_but_time(aged: Path, known: KnownFiles, harm: bytes) -> None:
    pack_tree(aged, known=known)
    known.close()
    for path in known._path.parent.iterdir():
        path.write_bytes(harm)
    again = KnownFiles(known._path)
    assert pack_tree(aged, known=again).manifest == pack_tree(aged).manifest
    pack_tree(aged, known=again)
    assert pack_tree(aged, known=again).unread
    again.close()


def test_a_push_sends_known_files_that_the_remote_lacks(aged: Path, known: KnownFiles, tmp_path: Path) -> None:
    entries = [Entry(f.path, aged / f.path, f.executable) for f in scan(aged, ignore=False).files]
    for name in ("one", "two"):
        store = LocalStore(tmp_path / name)
        packed, sent = push(entries, store, known=known)
        assert sent == sum(size for _, _, size in packed.where.values())
        assert store.put_manifest(packed.manifest)
        assert push(entries, store, known=known)[1] == 0


def test_a_push_that_was_given_up_need_not_hash_its_files_again(
    aged: Path, known: KnownFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.store.known._SAVE_AT", 1)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_tree(aged, known=known, progress=interrupt)
    assert pack_tree(aged, known=KnownFiles(tmp_path / "cache" / "known.db")).unread
