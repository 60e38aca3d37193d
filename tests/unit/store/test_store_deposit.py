from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from shoal.core.errors import StorageFull, Unreachable
from shoal.store import deposit as deposits
from shoal.store.blobs import Growing, Staged
from shoal.store.blobstore import BlobStore
from shoal.store.check import check
from shoal.store.deposit import Deposit
from shoal.store.files import LocalBlobs
from shoal.store.hashing import Data, chunk_hash
from shoal.store.local import LocalStore
from shoal.store.packfiles.packfile import MOST_CHUNKS
from shoal.testing.store import made


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def put(deposit: Deposit, chunks: dict[str, bytes]) -> set[str]:
    return deposit.put({name: (None, data) for name, data in chunks.items()})


@pytest.fixture
def _soon_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is as much as much is otherwise."""
    monkeypatch.setattr(deposits, "_GROW_FROM", 10_000)


def noise(count: int, *, seed: int = 0, size: int = 600_000) -> dict[str, bytes]:
    """Return chunks that cannot be compressed."""
    made_up = random.Random(seed)
    return {chunk_hash(data): data for data in (made_up.randbytes(size) for _ in range(count))}


def left_aside(store: LocalStore) -> list[Path]:
    return list((store.root / "tmp").iterdir())


@pytest.mark.parametrize("count", [1, 20])
def test_what_is_put_is_there_once_it_is_settled_and_not_before(store: LocalStore, count: int) -> None:
    first, second = made(count), made(count, seed=1)
    with store.deposit() as deposit:
        assert put(deposit, first) == set(first)
        assert put(deposit, second) == set(second)
        assert store.missing(first) == set(first)
        deposit.flush()
        assert store.missing([*first, *second]) == set()
        assert put(deposit, first) == set()
    assert {name: store.get(name) for name in first | second} == first | second
    assert left_aside(store) == []


def test_nothing_is_visible_before_it_is_on_the_disk(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is synced, then renamed, then its folder is synced, then `flush` returns."""
    done: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def noted_sync(fd: int) -> None:
        fsync(fd)
        done.append(("sync", str(Path(f"/proc/self/fd/{fd}").readlink())))

    def noted_rename(before: str, after: str) -> None:
        done.append(("rename", before))
        rename(before, after)

    with store.deposit() as deposit:
        for seed in range(3):
            put(deposit, made(10, seed=seed))
        put(deposit, made(2, seed=9))
        waiting = {str(path) for path in left_aside(store)}
        monkeypatch.setattr(os, "fsync", noted_sync)
        monkeypatch.setattr(os, "rename", noted_rename)
        deposit.flush()
        monkeypatch.undo()
    renamed = [at for at, (what, _) in enumerate(done) if what == "rename"]
    assert {done[at][1] for at in renamed} == waiting
    for at in renamed:
        assert ("sync", done[at][1]) in done[:at]
    assert ("sync", str(store.root / "packs")) in done[renamed[0] :]


def test_it_settles_by_itself_now_and_then(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deposits, "_FLUSH_S", 0.0)
    with store.deposit() as deposit:
        put(deposit, made(10))
        assert store.missing(made(10)) == set()


def test_what_was_put_before_an_error_is_kept_for_the_next_try(store: LocalStore) -> None:
    with pytest.raises(KeyboardInterrupt), store.deposit() as deposit:
        put(deposit, made(10))
        raise KeyboardInterrupt
    assert store.missing(made(10)) == set()
    assert left_aside(store) == []


def test_a_full_disk_leaves_nothing_half_made_and_what_fitted(small_disk: Path) -> None:
    store = LocalStore(small_disk / "store")
    fits = {chunk_hash(d): d for d in (os.urandom(200_000) for _ in range(5))}
    too_much = {chunk_hash(d): d for d in (os.urandom(1_000_000) for _ in range(6))}
    with pytest.raises(StorageFull, match="full"), store.deposit() as deposit:
        put(deposit, fits)
        put(deposit, too_much)
    assert left_aside(store) == []
    assert store.missing([*fits, *too_much]) == set(too_much)
    assert check(store).ok


class FlakyBlobs(LocalBlobs):
    """Fails once, as a bucket far away does."""

    fails = 1

    def stage(self, key: str, pieces: Sequence[Data]) -> Staged:
        if self.fails:
            self.fails -= 1
            raise Unreachable
        return super().stage(key, pieces)


def test_a_batch_that_failed_is_stored_when_it_is_put_again(tmp_path: Path) -> None:
    store = BlobStore(FlakyBlobs(tmp_path), index_path=None)
    with store.deposit() as deposit:
        with pytest.raises(Unreachable):
            put(deposit, made(10))
        assert put(deposit, made(10)) == set(made(10))
    assert store.missing(made(10)) == set()


def test_a_disk_that_fails_at_the_end_is_an_error_for_whoever_settles(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"), store.deposit() as deposit:
        put(deposit, made(10))
        monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.undo()
    assert left_aside(store) == []
    assert store.missing(made(10)) == set(made(10))


def test_much_that_is_put_bit_by_bit_shares_a_file(store: LocalStore) -> None:
    chunks = noise(20)
    names = list(chunks)
    with store.deposit() as deposit:
        for at in range(0, 20, 10):
            put(deposit, {name: chunks[name] for name in names[at : at + 10]})
        assert len(left_aside(store)) == 1
    (pack,) = (store.root / "packs").iterdir()
    lying = [e.hash for e in sorted(store.packs.head(pack.name), key=lambda e: e.offset)]
    assert lying == names
    assert {name: store.get(name) for name in names} == chunks
    assert {name: bytes(data) for name, data in LocalStore(store.root).get_many(names, once=True)} == chunks
    assert check(store).ok
    assert left_aside(store) == []


@pytest.mark.usefixtures("_soon_large")
def test_a_file_that_is_large_enough_grows_no_more(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.store.packfiles.collection._GROWN", 60_000)
    chunks: dict[str, bytes] = {}
    with store.deposit() as deposit:
        for seed in range(4):
            more = noise(10, seed=seed, size=6_000)
            put(deposit, more)
            chunks |= more
        many = noise(MOST_CHUNKS + 1, seed=9, size=600)
        put(deposit, many)
    assert len(list((store.root / "packs").iterdir())) == 5
    assert {name: store.get(name) for name in chunks | many} == chunks | many
    assert check(store).ok


@pytest.mark.usefixtures("_soon_large")
def test_settling_waits_for_whoever_adds_to_a_file_that_holds_what_was_put_before(tmp_path: Path) -> None:
    class Slow(LocalBlobs):
        let_go, is_writing = threading.Event(), threading.Event()
        slow = False

        def grow(self) -> Growing:
            grown = super().grow()
            write = grown.write

            def slowly(pieces: Sequence[Data], start: int) -> None:
                if self.slow:
                    self.is_writing.set()
                    assert self.let_go.wait(10)
                write(pieces, start)

            grown.write = slowly  # type: ignore[method-assign]
            return grown

    blobs = Slow(tmp_path / "store")
    store = BlobStore(blobs, index_path=None)
    first, second = noise(10, size=2_000), noise(10, seed=1, size=2_000)
    with store.deposit() as deposit, ThreadPoolExecutor(2) as pool:
        put(deposit, first)
        blobs.slow = True
        adding = pool.submit(put, deposit, second)
        assert blobs.is_writing.wait(10)
        settling = pool.submit(deposit.flush)
        assert wait([settling], timeout=0.1).not_done
        blobs.let_go.set()
        settling.result(10)
        assert store.missing(first) == set()
        assert adding.result(10) == set(second)
    assert store.missing(second) == set()


@pytest.mark.usefixtures("_soon_large")
def test_what_a_growing_file_held_before_the_disk_was_full_is_kept(tmp_path: Path) -> None:
    class Filling(LocalBlobs):
        """Writes the beginning of what does not fit any more."""

        full = False

        def grow(self) -> Growing:
            grown = super().grow()
            write = grown.write

            def fill(pieces: Sequence[Data], start: int) -> None:
                write(pieces[:3] if self.full else pieces, start)
                if self.full:
                    raise StorageFull

            grown.write = fill  # type: ignore[method-assign]
            return grown

    blobs = Filling(tmp_path / "store")
    store = BlobStore(blobs, index_path=None)
    first, second, third = (noise(10, seed=seed, size=2_000) for seed in range(3))
    with store.deposit() as deposit:
        put(deposit, first)
        blobs.full = True
        with pytest.raises(StorageFull):
            put(deposit, second)
        blobs.full = False
        put(deposit, third)
    assert store.missing([*first, *second, *third]) == set(second)
    assert {name: store.get(name) for name in first | third} == first | third
    assert check(store).ok
    with store.deposit() as deposit:
        blobs.full = True
        with pytest.raises(StorageFull):
            put(deposit, second)
    assert list((tmp_path / "store/tmp").iterdir()) == []


KILLED = """
import sys
from pathlib import Path
from shoal.store.local import LocalStore
from shoal.testing.store import made
def chunks(n):
    return made(2 + n % 9, seed=n, size=500_000 if n % 9 == 8 else 3000 + 97 * n)
store, n = LocalStore(Path(sys.argv[1])), 0
with store.deposit() as deposit:
    while n < 45:
        for _ in range(3):
            deposit.put({name: (0, data) for name, data in chunks(n).items()})
            n += 1
        deposit.flush()
        print(n, flush=True)
    sys.stdin.read()
"""


def chunks(n: int) -> dict[str, bytes]:
    return made(2 + n % 9, seed=n, size=500_000 if n % 9 == 8 else 3000 + 97 * n)


def test_kill_dash_nine_loses_nothing_that_was_settled_and_leaves_nothing_torn(tmp_path: Path) -> None:
    root = tmp_path / "store"
    for round_ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        settled = child.stdout.readline()
        deadline = time.monotonic() + 0.05 * round_
        while time.monotonic() < deadline and int(settled) < 45:
            settled = child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        settled = [settled, *(line for line in child.stdout if line.endswith("\n"))][-1]
        child.wait()
        store = LocalStore(root)
        for n in range(int(settled)):
            assert store.missing(chunks(n)) == set()
        assert check(store).ok
        store.close()
