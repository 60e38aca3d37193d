"""Trees fetched from chunks: whole or not there, continued where they stopped, never over other people's files."""

from __future__ import annotations

import os
import random
import stat

import pytest

from shoal.client._fetch import fetch_tree
from shoal.client._reading import open_stored
from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.errors import Corrupt, NameTaken, NotFound, Refused
from shoal.store.local import LocalStore
from shoal.store.pack import pack_tree
from shoal.store.transfer import upload


class Store:
    """A source that counts, and breaks where it is told to."""

    def __init__(self, store):
        self._store = store
        self.asked: list[str] = []
        self.break_after: int | None = None

    def get_many(self, names):
        for name in names:
            if self.break_after is not None and len(self.asked) >= self.break_after:
                raise KeyboardInterrupt
            self.asked.append(name)
            yield name, self._store.get(name)


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    (root / "sub/deep").mkdir(parents=True)
    randoms = random.Random(7)
    (root / "big.bin").write_bytes(randoms.randbytes(6 << 20))
    for i in range(40):
        (root / f"sub/{i}.txt").write_text(f"file {i} " * 50)
    (root / "sub/deep/same.txt").write_text("file 3 " * 50)
    (root / "empty").touch()
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    return root


@pytest.fixture
def stored(tree, tmp_path):
    local = LocalStore(tmp_path / "store")
    packed = pack_tree(tree, ignore=False)
    upload(packed, local)
    yield packed.manifest, Store(local)
    local.close()


def content(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_what_is_fetched_is_what_was_pushed(stored, tree, tmp_path):
    manifest, source = stored
    counted: list[int] = []
    fetched = fetch_tree(manifest, source, tmp_path / "out", progress=counted.append)
    assert content(tmp_path / "out") == content(tree)
    assert os.access(tmp_path / "out/run.sh", os.X_OK) and not os.access(tmp_path / "out/empty", os.X_OK)
    assert (fetched.files, fetched.size, sum(counted)) == (len(manifest.files), manifest.size, manifest.size)
    assert fetched.received < manifest.size, "the same chunk is fetched once"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "store", "tree"], "nothing is left beside it"


def test_the_folder_is_as_open_as_others_made_here(stored, tmp_path):
    manifest, source = stored
    (tmp_path / "other").mkdir()
    fetch_tree(manifest, source, tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


def test_an_interrupted_fetch_shows_nothing_and_goes_on_where_it_stopped(stored, tree, tmp_path):
    manifest, source = stored
    source.break_after = 20
    with pytest.raises(KeyboardInterrupt):
        fetch_tree(manifest, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    first, source.asked, source.break_after = set(source.asked), [], None
    counted: list[int] = []
    fetch_tree(manifest, source, tmp_path / "out", progress=counted.append)
    assert content(tmp_path / "out") == content(tree)
    assert len(first & set(source.asked)) <= 1, "only the one that was just being written may come again"
    assert sum(counted) == manifest.size


def test_what_an_interrupted_fetch_left_is_not_believed_but_verified(stored, tree, tmp_path):
    manifest, source = stored
    source.break_after = 30
    with pytest.raises(KeyboardInterrupt):
        fetch_tree(manifest, source, tmp_path / "out")
    source.break_after = None
    for left in (p for p in tmp_path.glob(".out.*.partial/tree/**/*") if p.is_file() and p.stat().st_size > 100):
        left.write_bytes(b"x" + left.read_bytes()[1:] + b"tail")
    fetch_tree(manifest, source, tmp_path / "out")
    assert content(tmp_path / "out") == content(tree)


def test_fetching_again_fetches_nothing(stored, tmp_path):
    manifest, source = stored
    fetch_tree(manifest, source, tmp_path / "out")
    assert fetch_tree(manifest, source, tmp_path / "out").received == 0


def test_a_missing_file_is_fetched_and_others_of_the_folder_stay(stored, tree, tmp_path):
    manifest, source = stored
    fetch_tree(manifest, source, tmp_path / "out")
    (tmp_path / "out/sub/3.txt").unlink()
    (tmp_path / "out/mine.txt").write_text("mine")
    assert 0 < fetch_tree(manifest, source, tmp_path / "out").received < 1000
    assert content(tmp_path / "out") == content(tree) | {"mine.txt": b"mine"}
    assert not list((tmp_path / "out").glob(".*"))


def test_other_content_is_replaced_only_when_told_to(stored, tree, tmp_path):
    manifest, source = stored
    out = tmp_path / "out"
    (out / "sub").mkdir(parents=True)
    (out / "sub/1.txt").write_text("precious")
    with pytest.raises(NameTaken, match=r"sub/1\.txt") as caught:
        fetch_tree(manifest, source, out)
    assert "--force" in (caught.value.hint or "")
    assert content(out) == {"sub/1.txt": b"precious"} and source.asked == []
    fetch_tree(manifest, source, out, force=True)
    assert content(out) == content(tree)


def test_a_link_in_the_destination_is_never_written_through(stored, tmp_path):
    manifest, source = stored
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    out.mkdir()
    (out / "sub").symlink_to(outside)
    with pytest.raises(NameTaken):
        fetch_tree(manifest, source, out, force=True)
    assert list(outside.iterdir()) == []


def test_a_folder_of_someone_elses_in_the_way_is_refused(stored, tmp_path):
    manifest, source = stored
    source.break_after = 0
    with pytest.raises(KeyboardInterrupt):
        fetch_tree(manifest, source, tmp_path / "out")
    source.break_after = None
    (aside,) = tmp_path.glob(".out.*.partial")
    aside.chmod(0o777)
    with pytest.raises(Refused, match="exists and is not a private folder"):
        fetch_tree(manifest, source, tmp_path / "out")


@pytest.mark.parametrize(("error", "word"), [(Corrupt, "damaged"), (NotFound, "missing")])
def test_a_chunk_that_cannot_be_had_is_told_by_the_name_of_its_file(stored, tmp_path, error, word):
    manifest, _ = stored
    bad = next(f for f in manifest.files if f.path == "sub/7.txt").chunks[0].hash

    class Broken:
        def get_many(self, names):
            for name in names:
                if name == bad:
                    raise error("no", details={"hash": name})
                yield name, stored[1]._store.get(name)

    with pytest.raises(Corrupt, match=rf"^sub/7\.txt cannot be fetched: a part of it is {word}"):
        fetch_tree(manifest, Broken(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_empty_dataset_becomes_an_empty_folder(tmp_path):
    fetch_tree(Manifest(files=[]), Store(None), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_stored_file_reads_like_one_on_disk(stored, tree):
    manifest, source = stored
    entry = next(f for f in manifest.files if f.path == "big.bin")
    data = (tree / "big.bin").read_bytes()
    with open_stored(entry, source) as file:
        assert file.read() == data
        file.seek(-100, os.SEEK_END)
        assert file.read(50) == data[-100:-50]
        file.seek(3_000_000)
        assert file.read(2_000_000) == data[3_000_000:5_000_000]
    with open_stored(FileEntry(path="empty", size=0, chunks=[]), source) as file:
        assert file.read() == b""


def test_reading_a_header_fetches_one_chunk(stored):
    manifest, source = stored
    with open_stored(next(f for f in manifest.files if f.path == "big.bin"), source) as file:
        file.read(8)
    assert len(source.asked) == 1
