from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.core.errors import Corrupt, NotFound, StorageFull
from shoal.store.backend import open_store
from shoal.store.check import check
from shoal.store.gc import collect
from shoal.store.hashing import chunk_hash
from shoal.store.local import LocalStore
from shoal.testing.store import commit_somehow, made, manifest_of


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def files_below(root: Path) -> list[Path]:
    return [p for p in root.rglob("*") if p.is_file()] if root.exists() else []


def test_reading_makes_no_folders(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "absent")
    assert store.missing(["0" * 64]) == {"0" * 64}
    with pytest.raises(NotFound):
        store.get("0" * 64)
    assert list(store.list()) == list(store.list_manifests()) == []
    assert not (tmp_path / "absent").exists()


def test_many_small_chunks_share_a_file_and_a_few_do_not(store: LocalStore) -> None:
    store.put_many(made(500).items())
    assert len(files_below(store.root / "packs")) == 1
    store.put_many(made(2, seed=1).items())
    assert len(files_below(store.root / "chunks")) == 2
    assert files_below(store.root / "tmp") == []


@pytest.mark.parametrize("count", [1, 20])
def test_a_flipped_bit_on_disk_is_noticed_on_reading(store: LocalStore, count: int) -> None:
    chunks = made(count, size=600)
    store.put_many(chunks.items())
    (path,) = files_below(store.root / ("chunks" if count == 1 else "packs"))
    data = bytearray(path.read_bytes())
    data[-40] ^= 0x10
    path.write_bytes(data)
    bad = []
    for name, plain in chunks.items():
        try:
            assert store.get(name) == plain
        except Corrupt:
            bad.append(name)
    assert len(bad) == 1
    with pytest.raises(Corrupt):
        list(store.get_many(chunks))
    assert check(store).damaged == set(bad)


@pytest.mark.parametrize("content", [b"", b"\x00", b"\x01garbage", b"\x63x"])
def test_a_torn_chunk_file_is_corrupt_not_wrong(store: LocalStore, content: bytes) -> None:
    name = chunk_hash(b"data")
    store.put(name, b"data")
    files_below(store.root / "chunks")[0].write_bytes(content)
    with pytest.raises(Corrupt):
        store.get(name)


def test_a_damaged_manifest_is_corrupt_and_stops_collections(store: LocalStore) -> None:
    chunks = made(5)
    name = commit_somehow(store, chunks)
    (path,) = files_below(store.root / "manifests")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(Corrupt, match=name[:12]):
        store.get_manifest(name)
    with pytest.raises(Corrupt):
        collect(store, grace_s=-3600)
    assert store.missing(chunks) == set()
    assert check(store).damaged_manifests == {name}


@pytest.mark.parametrize("harm", ["gone", "garbage", "empty"])
def test_the_pack_index_is_made_again_when_it_is_lost_or_damaged(tmp_path: Path, harm: str) -> None:
    chunks = made(30)
    first = LocalStore(tmp_path / "s")
    first.put_many(chunks.items())
    first.close()
    for path in (tmp_path / "s").glob("index.db*"):
        if harm == "gone":
            path.unlink()
        else:
            path.write_bytes(b"not a database" * 1000 if harm == "garbage" else b"")
    second = LocalStore(tmp_path / "s")
    assert second.missing(chunks) == set()
    assert {h: second.get(h) for h in chunks} == chunks
    second.close()


def test_the_pack_index_may_be_damaged_while_it_is_open(store: LocalStore) -> None:
    chunks = made(200)
    store.put_many(chunks.items())
    store.close()
    store.missing(chunks)
    path = store.root / "index.db"
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 100_000)
    (store.root / "index.db-wal").write_bytes(b"")
    other = LocalStore(store.root)
    assert {h: other.get(h) for h in chunks} == chunks
    other.close()


def test_chunks_put_by_one_process_are_seen_by_another_that_was_open_before(tmp_path: Path) -> None:
    reader, writer = LocalStore(tmp_path / "s"), LocalStore(tmp_path / "s")
    writer.put_many(made(10).items())
    assert reader.missing(made(10)) == set()
    writer.put_many(made(10, seed=1).items())
    assert {h: reader.get(h) for h in made(10, seed=1)} == made(10, seed=1)


def test_a_store_that_may_not_be_written_is_still_read(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a read-only mount needs root")
    chunks = made(10)
    store = LocalStore(tmp_path / "s")
    store.put_many(chunks.items())
    store.close()
    view = tmp_path / "view"
    view.mkdir()
    subprocess.run(["mount", "--bind", store.root, view], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", view], check=True)
        for leftover in store.root.glob("index.db*"):
            leftover.unlink()
        reader = LocalStore(view)
        assert {h: reader.get(h) for h in chunks} == chunks
        reader.close()
    finally:
        subprocess.run(["umount", "-l", view], check=True)


def test_a_full_disk_is_said_so_and_leaves_nothing_half_made(small_disk: Path) -> None:
    store = LocalStore(small_disk / "store")
    first = {chunk_hash(d): d for d in (os.urandom(200_000) for _ in range(5))}
    name = commit_somehow(store, first)
    too_much = {chunk_hash(d): d for d in (os.urandom(1_000_000) for _ in range(6))}
    with pytest.raises(StorageFull, match="full"):
        store.put_many(too_much.items())
    assert files_below(store.root / "tmp") == []
    assert store.missing(too_much) == set(too_much)
    assert {h: store.get(h) for h in first} == first
    one = dict(list(too_much.items())[:1])
    store.put_many(one.items())
    assert store.get_manifest(name)
    assert check(store).ok
    filler = small_disk / "filler"
    with pytest.raises(OSError), filler.open("wb") as f:
        while True:
            f.write(bytes(10_000))
    with pytest.raises(StorageFull):
        store.put_manifest(manifest_of(one))
    filler.unlink()
    assert store.put_manifest(manifest_of(one))


KILLED = """
import os, sys, threading
from pathlib import Path
from shoal.store.local import LocalStore
from shoal.testing.store import made, manifest_of
store = LocalStore(Path(sys.argv[1]))
print("go", flush=True)
n = 0
while True:
    chunks = made(1 + n % 9, seed=n % 200, size=3000 + 97 * n)
    store.put_many(chunks.items())
    print(store.put_manifest(manifest_of(chunks)), flush=True)
    n += 1
"""


def test_kill_dash_nine_of_a_writer_leaves_nothing_torn_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    root = tmp_path / "store"
    acknowledged: list[str] = []
    for round_ in range(4):
        child = subprocess.Popen([sys.executable, "-c", KILLED, root], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "go\n"
        deadline = time.monotonic() + 0.05 * (round_ + 1)
        while time.monotonic() < deadline:
            acknowledged.append(child.stdout.readline().strip())
        child.send_signal(signal.SIGKILL)
        acknowledged += [line.strip() for line in child.stdout if line.endswith("\n")]
        child.wait()
        store = LocalStore(root)
        assert set(acknowledged) <= set(store.list_manifests())
        assert check(store).ok
        store.close()
    assert len(acknowledged) > 4


def test_a_store_is_opened_by_directory_or_file_url(tmp_path: Path) -> None:
    open_store(tmp_path / "s").put(chunk_hash(b"x"), b"x")
    assert open_store(f"file://{tmp_path}/s").get(chunk_hash(b"x")) == b"x"


def test_many_are_read_at_once_from_wherever_they_are(store: LocalStore) -> None:
    chunks = made(40, size=3_000) | made(2, seed=9)
    store.put_many(list(chunks.items())[:40])
    store.put_many(list(chunks.items())[40:])
    for once in (False, True):
        assert {name: bytes(data) for name, data in store.get_many(chunks, once=once)} == chunks
    with pytest.raises(NotFound):
        list(store.get_many([*chunks, "0" * 64]))


def test_a_damaged_chunk_among_many_is_noticed_and_a_sound_copy_used(store: LocalStore) -> None:
    chunks = made(10, size=600)
    store.put_many(chunks.items())
    (path,) = files_below(store.root / "packs")
    copied = store.packs.head(path.name)[0]
    store.packs.copy(path.name, [copied])
    with path.open("r+b") as f:
        f.seek(copied.offset + 5)
        f.write(b"\x00\xff\x00\xff")
    assert {name: bytes(data) for name, data in store.get_many(chunks)} == chunks
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    with path.open("r+b") as f:
        f.truncate(path.stat().st_size - 100)
    with pytest.raises(Corrupt):
        list(store.get_many(chunks))


def test_chunks_travel_as_they_are_stored(store: LocalStore, tmp_path: Path) -> None:
    chunks = made(20) | {chunk_hash(b"text " * 1000): b"text " * 1000}
    store.put_many(chunks.items())
    size, stored = store.stored(chunks)
    taken = [(name, codec, bytes(payload)) for name, codec, payload in stored]
    assert size == sum(len(payload) for _, _, payload in taken)
    other = LocalStore(tmp_path / "other")
    assert other.put_stored(taken) == len(chunks)
    assert {name: other.get(name) for name in chunks} == chunks
    store.put_many(made(1, seed=5).items())
    assert store.stored([*chunks, *made(1, seed=5)])[0] is None, "a chunk of its own has a length nobody has looked up"


@pytest.mark.parametrize("codec", [0, 1, 7])
def test_what_does_not_unpack_to_its_name_is_not_stored(store: LocalStore, codec: int) -> None:
    name = chunk_hash(b"other")
    with pytest.raises(Corrupt):
        store.put_stored([(name, codec, b"bytes")])
    assert store.missing([name]) == {name}


def test_a_file_pushed_in_order_lies_in_order(store: LocalStore) -> None:
    chunks = made(30)
    store.put_many(chunks.items())
    (pack,) = files_below(store.root / "packs")
    lying = [e.hash for e in sorted(store.packs.head(pack.name), key=lambda e: e.offset)]
    assert lying == list(chunks)
