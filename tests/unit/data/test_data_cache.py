import fcntl
import multiprocessing
import os
import threading
import time

import pytest

from shoal.data import cache as caching
from shoal.data.cache import ChunkCache
from shoal.store.hashing import chunk_hash


def chunk(n, size=1000):
    data = n.to_bytes(4, "big") * (size // 4)
    return chunk_hash(data), data


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(caching, "DISK_RESERVE", 0)
    return ChunkCache(tmp_path / "cache", 100_000)


def held(cache):
    return sum(size for _, size, _ in caching._files(cache.root / "chunks"))


def put(cache, numbers, **options):
    for n in numbers:
        cache.put(*chunk(n, **options))


def test_what_was_put_is_there(cache):
    name, data = chunk(1)
    assert cache.get(name) is None
    cache.put(name, data)
    assert cache.get(name) == data


def test_it_stays_below_its_limit(cache):
    for n in range(200):
        cache.put(*chunk(n))
        assert held(cache) <= 100_000 + 5_000 + 1000
    assert held(cache) >= 80_000


def test_the_oldest_use_goes_first(cache):
    put(cache, range(50))
    for age, n in enumerate(reversed(range(50))):
        path = cache._path(chunk(n)[0])
        os.utime(path, (age, age))
    assert cache.get(chunk(49)[0]) is not None  # used just now, so no longer the oldest
    small = ChunkCache(cache.root, 20_000)
    small.sweep()
    assert cache.get(chunk(49)[0]) is not None
    assert cache.get(chunk(48)[0]) is None
    assert cache.get(chunk(0)[0]) is not None
    assert held(cache) <= 20_000


def test_a_damaged_chunk_is_removed_and_not_returned(cache):
    name, data = chunk(1)
    cache.put(name, data)
    path = cache._path(name)
    path.write_bytes(data[:500] + b"?" + data[501:])
    assert cache.get(name) is None
    assert not path.exists()
    path.write_bytes(data[:-1])
    assert cache.get(name) is None
    cache.put(name, data)
    assert cache.get(name) == data


def test_a_limit_of_nothing_keeps_nothing(tmp_path):
    cache = ChunkCache(tmp_path / "cache", 0)
    cache.put(*chunk(1))
    with cache.claim([chunk(1)[0]]) as claimed:
        assert claimed == {chunk(1)[0]}
    assert not cache.root.exists()


def test_a_place_that_cannot_be_written_is_done_without(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = ChunkCache(tmp_path / "file" / "cache", 10_000)
    name, data = chunk(1)
    cache.put(name, data)
    cache.put(name, data)
    assert cache.get(name) is None
    assert caplog.text.count("without a cache on disk") == 1


def test_a_full_disk_leaves_no_file_behind(cache, monkeypatch):
    def full(path, data):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caching, "_write", full)
    cache.put(*chunk(1))
    assert cache.get(chunk(1)[0]) is None
    assert list((cache.root / "tmp").iterdir()) == []
    monkeypatch.undo()
    cache.put(*chunk(1))
    assert cache.get(chunk(1)[0]) is not None


def test_it_leaves_others_some_of_the_disk(tmp_path, monkeypatch):
    cache = ChunkCache(tmp_path / "cache", 100_000)
    put(cache, range(50))
    monkeypatch.setattr(
        caching.shutil, "disk_usage", lambda path: type("Usage", (), {"free": caching.DISK_RESERVE - 30_000})
    )
    cache.sweep()
    assert held(cache) <= 20_000


def test_files_of_a_killed_writer_are_swept_away_later(cache):
    put(cache, [1])
    stray = cache.root / "tmp" / "half"
    fresh = cache.root / "tmp" / "being-written"
    for path in (stray, fresh):
        path.write_bytes(b"half")
    os.utime(stray, (1, 1))
    cache.sweep()
    assert not stray.exists()
    assert fresh.exists()


def test_what_has_been_of_no_use_for_long_is_swept_away_too(cache):
    put(cache, [1])
    for folder in ("counts", "manifests"):
        (cache.root / folder).mkdir()
        for name, age in (("old", 40), ("new", 1)):
            (cache.root / folder / name).write_text("")
            os.utime(cache.root / folder / name, (time.time() - age * 86400,) * 2)
    cache.sweep()
    assert sorted(p.name for p in cache.root.glob("*/*") if p.parent.name in ("counts", "manifests")) == ["new", "new"]


class TestClaims:
    def test_what_another_claims_is_not_ours(self, cache):
        other = ChunkCache(cache.root, cache.limit)
        with cache.claim(["a" * 64, "b" * 64]) as mine, other.claim(["b" * 64, "c" * 64]) as theirs:
            assert mine == {"a" * 64, "b" * 64}
            assert theirs == {"c" * 64}
        with other.claim(["b" * 64]) as theirs:
            assert theirs == {"b" * 64}

    def test_waiting_ends_when_the_other_is_done(self, cache):
        name, data = chunk(1)
        claimed, go_on = threading.Event(), threading.Event()

        def other():
            with cache.claim([name]):
                claimed.set()
                go_on.wait()
                cache.put(name, data)

        thread = threading.Thread(target=other)
        thread.start()
        claimed.wait()
        threading.Timer(0.1, go_on.set).start()
        assert cache.wait(name, 10) == data
        thread.join()

    def test_waiting_ends_when_the_other_is_killed(self, cache):
        name, _ = chunk(1)
        context = multiprocessing.get_context("fork")
        ready = context.Event()

        def hold():
            with cache.claim([name]):
                ready.set()
                time.sleep(60)

        process = context.Process(target=hold)
        process.start()
        ready.wait()
        threading.Timer(0.1, process.kill).start()
        started = time.monotonic()
        assert cache.wait(name, 30) is None
        assert time.monotonic() - started < 20
        process.join()

    def test_waiting_ends_after_its_time(self, cache):
        name, _ = chunk(1)
        with cache.claim([name]):
            assert ChunkCache(cache.root, cache.limit).wait(name, 0.1) is None

    def test_only_one_sweeps_at_a_time(self, cache):
        put(cache, range(50))
        small = ChunkCache(cache.root, 10_000)
        with (cache.root / "locks" / "sweep").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            small.sweep()
            assert held(cache) == 50_000
        small.sweep()
        assert held(cache) <= 10_000


def test_the_limit_is_taken_from_the_environment(monkeypatch, caplog):
    monkeypatch.setenv("SHOAL_DATA_CACHE_GB", "0.5")
    assert caching.cache_limit() == 500_000_000
    monkeypatch.setenv("SHOAL_DATA_CACHE_GB", "much")
    assert caching.cache_limit() == 20_000_000_000
    assert "not a number" in caplog.text


def test_without_a_place_of_its_own_it_is_below_the_data_directory(own_surroundings, monkeypatch):
    monkeypatch.delenv("SHOAL_DATA_CACHE")
    assert caching.cache_dir() == own_surroundings / "cache" / "stream"
