"""Trees sent to the server: only what it lacks, in requests that fit the line, until it has all."""

from __future__ import annotations

import random
import threading

import pytest

from shoal.client._push import LARGEST, MOST_UNASKED, SMALLEST, Sender, send_tree
from shoal.core.errors import Refused, Unreachable
from shoal.store.hashing import chunk_hash
from shoal.store.known import KnownFiles
from shoal.store.manifest import chunk_hashes
from shoal.store.pack import Entry, pack_tree


class Server:
    """The server's store, as the client sees it."""

    def __init__(self):
        self.chunks: dict[str, bytes] = {}
        self.requests: list[int] = []
        self.questions = 0
        self.fail_times = 0
        self._lock = threading.Lock()

    def missing(self, hashes):
        self.questions += 1
        return {h for h in hashes if h not in self.chunks}

    def send(self, chunks):
        with self._lock:
            if self.fail_times:
                self.fail_times -= 1
                raise Unreachable("cut off")
        todo = {name: bytes(data) for name, data in chunks}
        with self._lock:
            self.requests.append(sum(map(len, todo.values())))
            self.chunks |= todo
        return len(todo)

    def commit(self, packed):
        return [h for h in chunk_hashes(packed.manifest) if h not in self.chunks]


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def entries(tmp_path):
    randoms = random.Random(3)
    (tmp_path / "big.bin").write_bytes(randoms.randbytes(5 << 20))
    for i in range(30):
        (tmp_path / f"{i}.bin").write_bytes(randoms.randbytes(5_000))
    (tmp_path / "again.bin").write_bytes((tmp_path / "3.bin").read_bytes())
    return [Entry(p.name, p) for p in sorted(tmp_path.iterdir())]


def size_of(entries):
    return sum(e.disk.stat().st_size for e in entries)


def test_entries_are_packed_sent_and_committed(server, entries):
    counted: list[int] = []
    done = send_tree(server, entries, server.commit, counted.append)
    assert server.commit(done.packed) == []
    assert sum(counted) == size_of(entries)
    assert done.sent == size_of(entries) - 5_000, "what is there twice travels once"


def test_what_the_server_has_is_not_sent_and_still_counts(server, entries):
    send_tree(server, entries, server.commit)
    counted: list[int] = []
    done = send_tree(server, entries, server.commit, counted.append)
    assert (done.sent, sum(counted)) == (0, size_of(entries))


def test_known_files_are_read_only_where_the_server_lacks_something(server, entries, tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.store.known._RACY_NS", 0)
    known = KnownFiles(tmp_path.parent / f"{tmp_path.name}.db")
    send_tree(server, entries, server.commit, known=known)
    lost = chunk_hash((tmp_path / "7.bin").read_bytes())
    del server.chunks[lost]
    counted: list[int] = []
    done = send_tree(server, entries, server.commit, counted.append, known)
    assert done.packed.unread == {e.path for e in entries}
    assert (done.sent, sum(counted)) == (5_000, size_of(entries))
    assert lost in server.chunks
    known.close()


def test_a_packed_tree_can_be_sent_too(server, entries, tmp_path):
    packed = pack_tree(tmp_path, ignore=False)
    assert send_tree(server, packed, server.commit).sent > 0
    assert server.commit(packed) == []


def test_what_was_collected_before_the_commit_is_sent_again(server, entries):
    took: list[str] = []

    def commit(packed):
        if not took:
            took.append(server.chunks.popitem()[0])
        return server.commit(packed)

    assert server.commit(send_tree(server, entries, commit).packed) == []


def test_a_server_that_never_has_all_is_given_up(server, entries):
    with pytest.raises(Refused, match="keeps losing"):
        send_tree(server, entries, lambda packed: ["0" * 64])


def test_a_cut_off_request_is_sent_again(server, entries, monkeypatch):
    monkeypatch.setattr("shoal.store.transfer._FIRST_WAIT_S", 0.001)
    server.fail_times = 3
    counted: list[int] = []
    done = send_tree(server, entries, server.commit, counted.append)
    assert server.commit(done.packed) == [] and sum(counted) == size_of(entries)


def test_a_progress_that_raises_stops_everything(server, entries):
    def stop(num_bytes):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        send_tree(server, entries, server.commit, stop)
    assert len(server.chunks) < len(entries)


class Line(Server):
    """Takes its time for every byte."""

    def __init__(self, bytes_per_s):
        super().__init__()
        self.now, self.bytes_per_s = 0.0, bytes_per_s

    def send(self, chunks):
        stored = super().send(chunks)
        self.now += self.requests[-1] / self.bytes_per_s
        return stored


@pytest.mark.parametrize(
    ("bytes_per_s", "least", "most"), [(1e5, 0, SMALLEST), (6e6, 3 << 20, 8 << 20), (1e9, 3 * LARGEST // 4, LARGEST)]
)
def test_requests_take_about_a_second_each(monkeypatch, bytes_per_s, least, most):
    monkeypatch.setattr("shoal.client._push.THREADS", 1)
    line = Line(bytes_per_s)
    piece = memoryview(b"x" * 500_000)
    with Sender(line, lambda _: None, clock=lambda: line.now) as sender:
        for i in range(160):
            sender.add([(chunk_hash(str(i).encode()), piece)])
        sender.finish()
    assert least <= max(line.requests[-3:-1]) <= most + len(piece)


@pytest.fixture
def one_by_one(server, monkeypatch):
    """Send numbered chunks, one per request."""
    monkeypatch.setattr("shoal.client._push.THREADS", 1)
    monkeypatch.setattr("shoal.client._push.MOST_CHUNKS", 1)
    monkeypatch.setattr("shoal.store.transfer._FIRST_WAIT_S", 0.001)

    def send(numbers):
        with Sender(server, lambda _: None) as sender:
            for data in (b"%d" % n for n in numbers):
                sender.add([(chunk_hash(data), memoryview(data))])
            sender.finish()

    return send


def test_where_all_is_missing_few_questions_are_asked(server, one_by_one):
    one_by_one(range(100))
    assert len(server.requests) == 100
    assert 100 / (MOST_UNASKED + 1) <= server.questions <= 100 / MOST_UNASKED + 1


def test_where_the_server_has_something_every_batch_is_asked_for(server, one_by_one):
    one_by_one(range(0, 100, 2))
    server.requests.clear()
    server.questions = 0
    one_by_one(range(100))
    assert (len(server.requests), server.questions) == (50, 100)


def test_what_it_has_is_sent_again_only_in_measure_with_what_it_had_not(server, one_by_one):
    one_by_one(range(50, 100))
    server.requests.clear()
    one_by_one(range(100))
    assert 50 <= len(server.requests) <= 50 + MOST_UNASKED


def test_after_a_cut_off_request_questions_are_asked_again(server, one_by_one):
    one_by_one(range(20))
    server.questions, server.fail_times = 0, 3
    one_by_one(range(20, 30))
    assert len(server.chunks) == 30 and server.questions >= 6
