import multiprocessing
import threading

import pytest

from shoal.core.artifacts import Chunk
from shoal.core.errors import Unreachable
from shoal.data import chunks as module
from shoal.data.cache import ChunkCache
from shoal.data.chunks import Chunks
from shoal.store.hashing import chunk_hash

DATA = {chunk_hash(data): data for data in (bytes([n]) * 1000 for n in range(100))}
ALL = [Chunk(hash=name, size=1000) for name in DATA]


class Server:
    """Counts what it is asked for; `gate` holds its answers back."""

    def __init__(self):
        self.asked = []
        self.gate = threading.Event()
        self.gate.set()
        self.failures = 0
        self._lock = threading.Lock()

    def fetch(self, names):
        with self._lock:
            self.asked += names
            failing = self.failures > 0
            self.failures -= failing
        self.gate.wait(20)
        if failing:
            raise Unreachable("not now")
        return {name: DATA[name] for name in names}


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def cache(tmp_path):
    return ChunkCache(tmp_path / "cache", 10_000_000)


def test_chunks_come_in_the_order_asked_for_and_are_fetched_once(server, cache):
    chunks = Chunks(server, cache)
    wanted = [ALL[5], ALL[3], ALL[5], ALL[9]]
    assert chunks.get(wanted) == [DATA[c.hash] for c in wanted]
    assert chunks.get(wanted[:2]) == [DATA[c.hash] for c in wanted[:2]]
    assert sorted(server.asked) == sorted({c.hash for c in wanted})


def test_many_chunks_are_asked_for_in_several_requests_and_all_come(server, cache):
    assert Chunks(server, cache).get(ALL) == [DATA[c.hash] for c in ALL]
    assert sorted(server.asked) == sorted(DATA)


def test_another_process_finds_them_on_disk(server, cache):
    Chunks(server, cache).get(ALL[:5])
    asked = len(server.asked)
    assert Chunks(server, cache).get(ALL[:5]) == [DATA[c.hash] for c in ALL[:5]]
    assert len(server.asked) == asked


def test_a_damaged_chunk_on_disk_is_fetched_again(server, cache):
    Chunks(server, cache).get(ALL[:1])
    path = cache._path(ALL[0].hash)
    path.write_bytes(b"x" * 1000)
    assert Chunks(server, cache).get(ALL[:1]) == [DATA[ALL[0].hash]]
    assert server.asked == [ALL[0].hash] * 2
    assert path.read_bytes() == DATA[ALL[0].hash]


def test_memory_is_bounded_and_keeps_what_was_used_last(server, tmp_path):
    chunks = Chunks(server, ChunkCache(tmp_path, 0), memory=10_000)
    for chunk in ALL[:30]:
        chunks.get([chunk])
        chunks.get(ALL[:1])
    assert chunks._held <= 10_000
    assert server.asked.count(ALL[0].hash) == 1
    chunks.get(ALL[1:2])
    assert server.asked.count(ALL[1].hash) == 2


@pytest.mark.parametrize("limit", [0, 10_000_000])
def test_threads_that_want_the_same_share_one_fetch(server, tmp_path, limit):
    chunks = Chunks(server, ChunkCache(tmp_path / "cache", limit))
    server.gate.clear()
    found = []
    threads = [threading.Thread(target=lambda: found.append(chunks.get(ALL[:3]))) for _ in range(6)]
    for thread in threads:
        thread.start()
    server.gate.set()
    for thread in threads:
        thread.join()
    assert found == [[DATA[c.hash] for c in ALL[:3]]] * 6
    assert len(server.asked) == 3


def test_what_is_warmed_is_there_when_needed(server, cache):
    chunks = Chunks(server, cache)
    chunks.warm(ALL[:4])
    assert chunks.get(ALL[:4]) == [DATA[c.hash] for c in ALL[:4]]
    assert len(server.asked) == 4


def test_a_failure_in_the_background_is_tried_again_in_the_foreground(server, cache):
    server.failures = 1
    server.gate.clear()
    chunks = Chunks(server, cache)
    chunks.warm(ALL[:1])
    while not server.asked:
        threading.Event().wait(0.001)
    threading.Timer(0.05, server.gate.set).start()
    assert chunks.get(ALL[:1]) == [DATA[ALL[0].hash]]


def test_an_error_passes_and_leaves_nothing_stuck(server, cache):
    server.failures = 1
    chunks = Chunks(server, cache)
    with pytest.raises(Unreachable):
        chunks.get(ALL[:2])
    assert chunks.get(ALL[:2]) == [DATA[c.hash] for c in ALL[:2]]


def test_a_frozen_process_holds_no_one_up_for_long(server, cache, monkeypatch):
    monkeypatch.setattr(module, "_OTHERS_S", 0.2)
    with ChunkCache(cache.root, cache.limit).claim([ALL[0].hash]):
        assert Chunks(server, cache).get(ALL[:2]) == [DATA[c.hash] for c in ALL[:2]]


def test_a_forked_child_starts_afresh(server, cache):
    """Fork like a DataLoader worker, while the parent's threads hold locks and chunks are being fetched."""
    chunks = Chunks(server, cache)
    server.gate.clear()
    chunks.warm(ALL[:8])
    while not server.asked:
        threading.Event().wait(0.001)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with chunks._lock:
        child = context.Process(target=lambda: answers.put(_in_child(chunks)))
        child.start()
    assert answers.get() is True
    child.join()
    server.gate.set()
    assert chunks.get(ALL[:8]) == [DATA[c.hash] for c in ALL[:8]]


def _in_child(chunks):
    chunks.remote.gate = threading.Event()
    chunks.remote.gate.set()
    chunks.remote._lock = threading.Lock()
    chunks.warm(ALL[20:30])
    return chunks.get(ALL[10:30]) == [DATA[c.hash] for c in ALL[10:30]]
