from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from shoal.core.errors import Corrupt, Refused, StorageFull, Unreachable
from shoal.store import hasher, transfer
from shoal.store.hashing import Data, chunk_hash
from shoal.store.ignore import scan
from shoal.store.local import LocalStore
from shoal.store.pack import Entry, PackedTree, pack_tree
from shoal.store.transfer import download, push, upload
from shoal.store.wire import decode_frames, encode_frames


class Wire:
    """A remote behind frames, as an HTTP client is; fails where told to."""

    def __init__(self, store: LocalStore):
        self.store = store
        self.sent: list[str] = []
        self.fail_sends = 0
        self.fail_fetches = 0
        self.asked = 0
        self._lock = threading.Lock()

    def missing(self, hashes: Iterable[str]) -> set[str]:
        self.asked += 1
        wanted = list(hashes)
        assert len(wanted) <= 10_000
        return self.store.missing(wanted)

    def send(self, chunks: Iterable[tuple[str, Data]]) -> int:
        with self._lock:
            failing = self.fail_sends > 0
            self.fail_sends -= failing
        body = list(encode_frames(chunks))
        if failing:
            body = body[: len(body) // 2]
        got = dict(decode_frames(body))
        self.store.put_many(got.items())
        self.sent += got
        if failing:
            raise Unreachable
        return len(got)

    def fetch(self, name: str) -> bytes:
        with self._lock:
            failing = self.fail_fetches > 0
            self.fail_fetches -= failing
        if failing:
            raise ConnectionResetError
        return self.store.get(name)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_FIRST_WAIT_S", 0.001)


@pytest.fixture
def remote(tmp_path: Path) -> Wire:
    return Wire(LocalStore(tmp_path / "store"))


@pytest.fixture
def packed(mixed_tree: Path) -> PackedTree:
    return pack_tree(mixed_tree)


def entries(root: Path) -> list[Entry]:
    return [Entry(f.path, root / f.path, f.executable) for f in scan(root, ignore=False).files]


def test_a_tree_travels_there_and_back(remote: Wire, packed: PackedTree, tmp_path: Path) -> None:
    seen: list[int] = []
    assert upload(packed, remote, progress=seen.append) == sum(c for _, _, c in packed.where.values())
    assert sum(seen) == packed.manifest.size
    remote.store.put_manifest(packed.manifest)
    back: list[int] = []
    download(packed.manifest, remote, tmp_path / "out", progress=back.append)
    assert pack_tree(tmp_path / "out").manifest == packed.manifest
    assert sum(back) == packed.manifest.size


def test_a_second_push_sends_nothing(remote: Wire, packed: PackedTree) -> None:
    upload(packed, remote)
    remote.sent.clear()
    assert upload(packed, remote) == 0
    assert remote.sent == []


def test_a_push_in_one_pass_equals_packing_and_sending(remote: Wire, packed: PackedTree, mixed_tree: Path) -> None:
    pushed, sent = push(entries(mixed_tree), remote)
    assert pushed.manifest == packed.manifest
    assert sent == sum(size for _, _, size in packed.where.values())
    remote.store.put_manifest(pushed.manifest)
    assert push(entries(mixed_tree), remote)[1] == 0


def test_a_push_to_a_store_on_this_machine_is_the_same(packed: PackedTree, mixed_tree: Path, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "direct")
    pushed, _ = push(entries(mixed_tree), store)
    store.put_manifest(pushed.manifest)
    download(pushed.manifest, store, tmp_path / "out")
    assert pack_tree(tmp_path / "out").manifest == packed.manifest


@pytest.mark.parametrize("one_pass", [True, False])
def test_broken_connections_are_tried_again(remote: Wire, mixed_tree: Path, tmp_path: Path, one_pass: bool) -> None:
    remote.fail_sends = 3
    packed = pack_tree(mixed_tree)
    if one_pass:
        push(entries(mixed_tree), remote)
    else:
        upload(packed, remote)
    remote.store.put_manifest(packed.manifest)
    remote.fail_fetches = 5
    download(packed.manifest, remote, tmp_path / "out")
    assert pack_tree(tmp_path / "out").manifest == packed.manifest


@pytest.mark.parametrize("one_pass", [True, False])
def test_a_remote_that_stays_away_is_reported_and_a_later_try_goes_on(
    remote: Wire, mixed_tree: Path, one_pass: bool
) -> None:
    packed = pack_tree(mixed_tree)
    remote.fail_sends = 10**6
    with pytest.raises(Unreachable):
        push(entries(mixed_tree), remote) if one_pass else upload(packed, remote)
    arrived = set(remote.sent)
    assert arrived
    remote.fail_sends, remote.sent = 0, []
    push(entries(mixed_tree), remote) if one_pass else upload(packed, remote)
    assert not arrived & set(remote.sent)
    assert remote.store.put_manifest(packed.manifest)


def test_other_errors_pass_at_once(remote: Wire, packed: PackedTree, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def broken(chunks: object) -> int:
        calls.append(1)
        raise Corrupt("no")

    monkeypatch.setattr(remote, "send", broken)
    with pytest.raises(Corrupt):
        upload(packed, remote, threads=1)
    assert len(calls) <= 2


def test_a_file_that_changes_before_it_is_sent_stops_the_push(remote: Wire, mixed_tree: Path) -> None:
    packed = pack_tree(mixed_tree)
    (mixed_tree / "large.bin").write_bytes(os.urandom(5_000_000))
    with pytest.raises(Refused, match=r"large\.bin changed"):
        upload(packed, remote)


def test_ctrl_c_stops_a_push_and_leaves_no_thread(remote: Wire, mixed_tree: Path) -> None:
    before = threading.active_count()

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push(entries(mixed_tree), remote, progress=interrupt)
    assert threading.active_count() == before


def test_ctrl_c_is_heard_while_the_remote_is_slow(
    remote: Wire, mixed_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_BATCH_COUNT", 1)
    monkeypatch.setattr(hasher, "_GROUP_BYTES", 1)
    slow, sent, by_then = threading.Event(), [], []
    monkeypatch.setattr(remote, "send", lambda chunks: sent.append(1) or slow.wait(0.02) or 0)
    calls = iter(range(10**6))

    def interrupt(_: int) -> None:
        if next(calls) == 3:
            by_then.append(len(sent))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push(entries(mixed_tree), remote, progress=interrupt, threads=1)
    assert len(sent) <= by_then[0] + 2, "it went on with the rest"


def test_what_is_large_goes_to_our_own_disk_without_waiting_for_more(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    large = [(chunk_hash(data), memoryview(data)) for data in (os.urandom(1 << 20) for _ in range(3))]
    small = [(chunk_hash(data), memoryview(data)) for data in (os.urandom(10_000) for _ in range(3))]
    with transfer._Sender(store, 1) as sender:
        sender.add(small)
        assert not (store.root / "tmp").exists(), "little waits for more"
        sender.add(large)
        sender._pool.submit(int).result()  # it has one thread: what was to be written before is
        assert sum(file.stat().st_size for file in (store.root / "tmp").iterdir()) >= 3 << 20
        sender.add(large)
        sender.finish()
        assert sender.sent == (3 << 20) + 30_000
    assert store.missing(name for name, _ in large + small) == set()


def test_whoever_brings_what_the_disk_does_not_take_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "store")
    big = tmp_path / "big.bin"
    big.write_bytes(os.urandom(20 << 20))

    def full(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("shoal.store.io.direct.DirectWriter.write", full)
        patched.setattr("shoal.store.files.write_at", full)
        with pytest.raises(StorageFull):
            push([Entry("big.bin", big)], store)
    assert list((store.root / "tmp").iterdir()) == []
    packed, _ = push([Entry("big.bin", big)], store)
    store.put_manifest(packed.manifest)


def test_memory_stays_flat_for_any_size(tmp_path: Path) -> None:
    import subprocess
    import sys

    with (tmp_path / "big.bin").open("wb") as f:
        for n in range(24):
            f.write(os.urandom(5_000_000 + n))
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from shoal.store.local import LocalStore; from shoal.store.pack import Entry\n"
        "from shoal.store.transfer import download, push\n"
        "store, big = LocalStore(Path(sys.argv[1]) / 's'), Path(sys.argv[1]) / 'big.bin'\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "packed, _ = push([Entry('big.bin', big)], store); store.put_manifest(packed.manifest)\n"
        "download(packed.manifest, store, Path(sys.argv[1]) / 'out')\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200
