from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.errors import Corrupt, InvalidSpec, NameTaken, NotFound, StorageFull
from shoal.store.hashing import chunk_hash
from shoal.store.local import LocalStore
from shoal.store.manifest import manifest_id
from shoal.store.materialize import materialize
from shoal.store.pack import pack_tree
from shoal.store.transfer import upload


def one_file(path: str, data: bytes = b"x") -> tuple[Manifest, dict[str, bytes]]:
    chunk = Chunk(hash=chunk_hash(data), size=len(data))
    entry = FileEntry.model_construct(path=path, size=len(data), executable=False, chunks=[chunk])
    return Manifest.model_construct(version=1, files=[entry]), {chunk.hash: data}


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name.endswith(".tmp")]


def test_a_tree_comes_back_as_it_was(mixed_tree: Path, tmp_path: Path) -> None:
    packed = pack_tree(mixed_tree)
    seen: list[int] = []
    materialize(packed.manifest, packed.read, tmp_path / "out", progress=seen.append)
    assert pack_tree(tmp_path / "out").manifest == packed.manifest
    assert sum(seen) == packed.manifest.size
    assert leftovers(tmp_path) == []
    assert os.access(tmp_path / "out/run.sh", os.X_OK)


def test_an_empty_manifest_gives_an_empty_folder(tmp_path: Path) -> None:
    materialize(Manifest(files=[]), lambda _: b"", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_read_only_trees_cannot_be_written_by_accident(mixed_tree: Path, tmp_path: Path) -> None:
    packed = pack_tree(mixed_tree)
    materialize(packed.manifest, packed.read, tmp_path / "out", read_only=True, stamp_s=1_000_000)
    for path in (tmp_path / "out").rglob("*"):
        assert not path.stat().st_mode & 0o222
        assert path.is_dir() or path.stat().st_mtime == 1_000_000


@pytest.mark.parametrize("bad", [b"", b"y", b"xx"])
def test_wrong_bytes_leave_no_tree(tmp_path: Path, bad: bytes) -> None:
    manifest, _ = one_file("a/b")
    with pytest.raises(Corrupt):
        materialize(manifest, lambda _: bad, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_failing_fetch_leaves_no_tree_and_no_open_file(mixed_tree: Path, tmp_path: Path) -> None:
    packed = pack_tree(mixed_tree)
    count = iter(range(10**6))

    def flaky(name: str) -> bytes:
        if next(count) > 30:
            raise NotFound("gone")
        return packed.read(name)

    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(NotFound):
        materialize(packed.manifest, flaky, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert leftovers(tmp_path) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_place_that_is_taken_is_refused(tmp_path: Path) -> None:
    manifest, chunks = one_file("a")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    for name in ("full", "file", "link"):
        with pytest.raises(NameTaken):
            materialize(manifest, chunks.__getitem__, tmp_path / name)
    (tmp_path / "empty").mkdir()
    materialize(manifest, chunks.__getitem__, tmp_path / "empty")
    assert (tmp_path / "empty/a").read_bytes() == b"x"


def test_merging_keeps_other_files_and_replaces_equal_paths(tmp_path: Path) -> None:
    manifest, chunks = one_file("sub/a", b"new")
    (tmp_path / "out/sub").mkdir(parents=True)
    (tmp_path / "out/sub/a").write_text("old")
    (tmp_path / "out/sub/b").write_text("mine")
    materialize(manifest, chunks.__getitem__, tmp_path / "out", merge=True)
    assert (tmp_path / "out/sub/a").read_text() == "new"
    assert (tmp_path / "out/sub/b").read_text() == "mine"
    assert leftovers(tmp_path) == []


def test_merging_never_goes_through_a_link(tmp_path: Path) -> None:
    manifest, chunks = one_file("sub/a", b"new")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidSpec, match="sub/a"):
        materialize(manifest, chunks.__getitem__, tmp_path / "out", merge=True)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert leftovers(tmp_path) == []


nasty = st.text(st.sampled_from("./\\~a\x00:\n-"), max_size=9)


@given(nasty)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_path_at_all_leads_outside(tmp_path: Path, path: str) -> None:
    place = tmp_path / os.urandom(6).hex()
    place.mkdir()
    manifest, chunks = one_file(path)
    try:
        materialize(manifest, chunks.__getitem__, place / "out")
    except InvalidSpec:
        assert list(place.iterdir()) == []
        return
    assert [p.name for p in place.iterdir()] == ["out"]
    written = [p for p in (place / "out").rglob("*") if p.is_file()]
    assert [str(p.relative_to(place / "out")) for p in written] == [path]


def test_a_full_disk_leaves_no_tree(small_disk: Path) -> None:
    manifest, chunks = one_file("a", os.urandom(8_000_000))
    with pytest.raises(StorageFull):
        materialize(manifest, chunks.__getitem__, small_disk / "out")
    assert list(small_disk.iterdir()) == []


KILLED = """
import sys
from pathlib import Path
from shoal.store.local import LocalStore
from shoal.store.materialize import materialize
store = LocalStore(Path(sys.argv[1]))
manifest = store.get_manifest(sys.argv[2])
print("go", flush=True)
for n in range(10_000):
    materialize(manifest, store.get, Path(sys.argv[3]) / str(n))
    print(n, flush=True)
"""


def test_kill_dash_nine_while_writing_shows_no_half_made_tree(mixed_tree: Path, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    packed = pack_tree(mixed_tree)
    upload(packed, store)
    name = store.put_manifest(packed.manifest)
    out = tmp_path / "out"
    for round_ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, store.root, name, out / str(round_)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.03 * (round_ + 1))  # the moment of the kill is the point
        child.send_signal(signal.SIGKILL)
        done = child.stdout.read().decode().split()
        child.wait()
        child.stdout.close()
        visible = [p for p in (out / str(round_)).iterdir() if not p.name.startswith(".")] if out.exists() else []
        assert set(done) <= {p.name for p in visible}
        for tree in visible[-3:]:
            assert manifest_id(pack_tree(tree, ignore=False).manifest) == name
