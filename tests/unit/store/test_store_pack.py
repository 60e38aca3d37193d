from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from shoal.core.errors import InvalidSpec, Refused
from shoal.store import hasher, pack
from shoal.store.hashing import chunk_hash
from shoal.store.ignore import scan
from shoal.store.manifest import check_manifest, manifest_id
from shoal.store.pack import pack_files, pack_tree


def test_a_tree_becomes_a_manifest_of_all_its_files(mixed_tree: Path) -> None:
    seen: list[int] = []
    packed = pack_tree(mixed_tree, progress=seen.append)
    manifest = check_manifest(packed.manifest)
    on_disk = {str(p.relative_to(mixed_tree)): p for p in mixed_tree.rglob("*") if p.is_file()}
    assert [f.path for f in manifest.files] == sorted(on_disk)
    assert {f.path for f in manifest.files if f.executable} == {"run.sh"}
    assert manifest.size == sum(p.stat().st_size for p in on_disk.values()) == sum(seen)
    for file in manifest.files:
        assert b"".join(packed.read(c.hash) for c in file.chunks) == on_disk[file.path].read_bytes()


def test_equal_trees_have_equal_ids_wherever_they_lie(tmp_path: Path) -> None:
    ids = set()
    for place in ("one", "two/deeper"):
        (tmp_path / place / "b").mkdir(parents=True)
        (tmp_path / place / "b/x").write_bytes(b"1")
        (tmp_path / place / "a").write_bytes(b"2")
        ids.add(manifest_id(pack_tree(tmp_path / place).manifest))
    assert len(ids) == 1


def test_an_empty_folder_is_an_empty_manifest(tmp_path: Path) -> None:
    assert pack_tree(tmp_path).manifest.files == []


def test_a_scan_of_before_is_used(mixed_tree: Path) -> None:
    found = scan(mixed_tree)
    (mixed_tree / "later.py").write_text("x")
    assert "later.py" not in [f.path for f in pack_tree(mixed_tree, scanned=found).manifest.files]


def test_single_files_are_packed_under_their_names_or_others(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x")
    assert [f.path for f in pack_files([tmp_path / "train.py"]).manifest.files] == ["train.py"]
    assert [f.path for f in pack_files({"src/main.py": tmp_path / "train.py"}).manifest.files] == ["src/main.py"]


def test_single_files_that_clash_or_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.py").write_text("1")
    (tmp_path / "x.py").write_text("2")
    with pytest.raises(InvalidSpec, match="both become"):
        pack_files([tmp_path / "a/x.py", tmp_path / "x.py"])
    with pytest.raises(InvalidSpec, match="not a file"):
        pack_files([tmp_path / "a"])
    with pytest.raises(InvalidSpec, match="no file"):
        pack_files([tmp_path / "absent"])
    with pytest.raises(InvalidSpec, match="safe relative path"):
        pack_files({"../x": tmp_path / "x.py"})


def test_a_file_that_changes_once_while_being_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.bin"
    path.write_bytes(b"old" * 1_000_000)
    real, calls = hasher.read_chunks, []

    def racing(fd: int, size: int, *rest: object):  # type: ignore[no-untyped-def]
        calls.append(1)
        for n, chunk in enumerate(real(fd, size, *rest)):
            if len(calls) == 1 and n == 1:
                path.write_bytes(b"new" * 1_000_000)
            yield chunk

    monkeypatch.setattr(hasher, "read_chunks", racing)
    seen: list[int] = []
    packed = pack_files([path], progress=seen.append)
    assert b"".join(packed.read(c.hash) for c in packed.manifest.files[0].chunks) == b"new" * 1_000_000
    assert sum(seen) == 3_000_000


def test_a_file_that_never_stands_still_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "growing.log"
    path.write_bytes(bytes(3_000_000))
    real = hasher.read_chunks

    def growing(fd: int, size: int, *rest: object):  # type: ignore[no-untyped-def]
        with path.open("ab") as f:
            f.write(b"x")
        yield from real(fd, size, *rest)

    monkeypatch.setattr(hasher, "read_chunks", growing)
    with pytest.raises(Refused, match=r"growing\.log changed"):
        pack_files([path])


def test_a_file_that_changed_or_went_since_it_was_packed_is_noticed_when_sent(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b").write_bytes(b"two")
    packed = pack_tree(tmp_path)
    (tmp_path / "a").write_bytes(b"eno")
    (tmp_path / "b").unlink()
    for data, name in ((b"one", "a"), (b"two", "b")):
        with pytest.raises(Refused, match=f"{name} changed"):
            packed.read(chunk_hash(data))


def test_no_thread_is_left_behind(mixed_tree: Path) -> None:
    before = threading.active_count()
    pack_tree(mixed_tree)
    assert threading.active_count() == before


def test_open_files_are_closed(mixed_tree: Path) -> None:
    def opened() -> list[str]:
        """Regular files of the tree; what other tests' sockets do is not our matter."""
        links = (str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())
        return [link for link in links if link.startswith(str(mixed_tree))]

    pack_tree(mixed_tree)
    assert opened() == []


def test_a_small_file_that_has_grown_large_since_it_was_listed_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.bin"
    path.write_bytes(random.Random(1).randbytes(3_000_000))
    cut = pack_files([path]).manifest
    real = pack._stat
    monkeypatch.setattr(pack, "_stat", lambda path: real(path)._replace(size=10))
    assert len(cut.files[0].chunks) > 1
    assert pack_files([path]).manifest == cut


@pytest.mark.parametrize("now", [b"new!", b"longer than before", b"", bytes(3_000_000)], ids=len)
def test_a_file_that_was_written_since_it_was_listed_is_packed_as_it_is_now(tmp_path: Path, now: bytes) -> None:
    (tmp_path / "f").write_bytes(b"old.")
    (tmp_path / "g").write_bytes(b"same")
    found = scan(tmp_path)
    (tmp_path / "f").write_bytes(now)
    packed = pack_tree(tmp_path, scanned=found)
    read = {f.path: b"".join(packed.read(c.hash) for c in f.chunks) for f in packed.manifest.files}
    assert read == {"f": now, "g": b"same"}


def test_a_small_file_that_never_stands_still_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "growing.log"
    path.write_bytes(b"x")
    real = hasher.read_into

    def growing(fd: int, *rest: object) -> int:
        with path.open("ab") as f:
            f.write(b"x")
        return real(fd, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(hasher, "read_into", growing)
    with pytest.raises(Refused, match=r"growing\.log changed"):
        pack_files([path])


def test_many_small_files_do_not_share_memory_they_still_need(tmp_path: Path) -> None:
    noise = random.Random(1)
    wanted = {f"{n}.bin": noise.randbytes(noise.choice([0, 1, 5_000, 400_000, 1 << 20])) for n in range(60)}
    for name, data in wanted.items():
        (tmp_path / name).write_bytes(data)
    taken: dict[str, memoryview] = {}
    entries = [pack.Entry(name, tmp_path / name) for name in wanted]
    packed = pack.pack_entries(entries, sink=lambda chunks: taken.update(chunks))
    for file in packed.manifest.files:
        assert b"".join(taken[c.hash] for c in file.chunks) == wanted[file.path]
