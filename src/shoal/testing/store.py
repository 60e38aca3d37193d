"""Contract tests of stores. Inherit `StoreContract` and add a fixture `opened`, which opens a store in an empty place."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.errors import Corrupt, InvalidSpec, NotFound
from shoal.store.blobstore import BlobStore
from shoal.store.check import check, usage
from shoal.store.gc import collect
from shoal.store.hashing import MAX_CHUNK, chunk_hash
from shoal.store.manifest import manifest_id

NOWHERE = "0" * 64


class StoreContract:
    """Tests that every store must pass. Each test gets its own place."""

    @pytest.fixture
    def opened(self) -> Iterator[Callable[[], BlobStore]]:
        """Yield a function that opens the same place each time, as several processes would."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, opened: Callable[[], BlobStore]) -> BlobStore:
        return opened()

    def test_a_chunk_comes_back_as_it_was_put(self, store: BlobStore) -> None:
        for data in (b"", b"x", b"text " * 10_000, os.urandom(300_000)):
            name = chunk_hash(data)
            assert store.missing([name]) == {name}
            store.put(name, data)
            assert store.missing([name]) == set()
            assert store.get(name) == data

    def test_the_largest_chunk_is_accepted_and_a_larger_one_is_not(self, store: BlobStore) -> None:
        largest = bytes(MAX_CHUNK)
        store.put(chunk_hash(largest), largest)
        assert store.get(chunk_hash(largest)) == largest
        with pytest.raises(Corrupt, match="limit"):
            store.put(chunk_hash(largest + b"x"), largest + b"x")

    def test_many_chunks_come_back_from_another_handle(self, store: BlobStore, opened: Callable[[], BlobStore]) -> None:
        chunks = made(40)
        assert store.put_many(chunks.items()) == 40
        other = opened()
        assert other.missing(chunks) == set()
        assert {h: other.get(h) for h in chunks} == chunks

    def test_putting_again_stores_nothing(self, store: BlobStore) -> None:
        chunks = made(10)
        store.put_many(chunks.items())
        before = usage(store).size
        assert store.put_many(chunks.items()) == 0
        assert usage(store).size == before

    def test_wrong_bytes_are_refused_and_not_stored(self, store: BlobStore) -> None:
        name = chunk_hash(b"right")
        with pytest.raises(Corrupt):
            store.put(name, b"wrong")
        assert store.missing([name]) == {name}

    def test_text_is_stored_smaller_than_it_is(self, store: BlobStore) -> None:
        data = b"the quick brown fox jumps over the lazy dog\n" * 5_000
        store.put(chunk_hash(data), data)
        assert usage(store).size < len(data) / 4

    def test_an_absent_chunk_is_not_found(self, store: BlobStore) -> None:
        with pytest.raises(NotFound):
            store.get(NOWHERE)

    def test_a_hash_that_is_none_never_becomes_a_path(self, store: BlobStore) -> None:
        for bad in ("", "../../etc/passwd", NOWHERE.upper().replace("0", "A"), NOWHERE + "0", "é" * 64):
            with pytest.raises(InvalidSpec):
                store.get(bad)
            with pytest.raises(InvalidSpec):
                store.missing([bad])
            with pytest.raises(InvalidSpec):
                store.get_manifest(bad)

    def test_deleted_chunks_are_gone_and_their_neighbours_are_not(self, store: BlobStore) -> None:
        chunks = made(12)
        store.put_many(chunks.items())
        single = b"on its own"
        store.put(chunk_hash(single), single)
        doomed = {*list(chunks)[:5], chunk_hash(single)}
        store.delete([*doomed, NOWHERE])
        assert store.missing([*chunks, chunk_hash(single)]) == doomed
        assert all(store.get(h) == chunks[h] for h in chunks if h not in doomed)

    def test_the_list_names_every_chunk_once(self, store: BlobStore) -> None:
        chunks = made(12)
        store.put_many(chunks.items())
        store.put(chunk_hash(b"single"), b"single")
        listed = [c.hash for c in store.list()]
        assert sorted(listed) == sorted([*chunks, chunk_hash(b"single")])

    def test_a_manifest_commits_only_when_all_its_chunks_are_there(self, store: BlobStore) -> None:
        chunks = made(6)
        manifest = manifest_of(chunks)
        with pytest.raises(NotFound) as error:
            store.put_manifest(manifest)
        assert set(error.value.details["missing"]) == set(chunks)
        assert list(store.list_manifests()) == []
        with pytest.raises(NotFound):
            store.get_manifest(manifest_id(manifest))
        store.put_many(chunks.items())
        assert store.put_manifest(manifest) == store.put_manifest(manifest) == manifest_id(manifest)
        assert list(store.list_manifests()) == [manifest_id(manifest)]
        assert store.get_manifest(manifest_id(manifest)) == manifest

    def test_an_empty_manifest_is_legal(self, store: BlobStore) -> None:
        empty = Manifest(files=[])
        assert store.get_manifest(store.put_manifest(empty)) == empty

    def test_a_deleted_manifest_is_gone(self, store: BlobStore) -> None:
        name = store.put_manifest(Manifest(files=[]))
        store.delete_manifest(name)
        store.delete_manifest(name)
        assert list(store.list_manifests()) == []

    def test_threads_putting_the_same_chunks_leave_one_sound_copy(self, store: BlobStore) -> None:
        chunks = made(30)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: store.put_many(chunks.items()), range(4)))
        assert store.missing(chunks) == set()
        assert check(store).ok

    def test_collection_takes_what_is_unreferenced_and_nothing_else(self, store: BlobStore) -> None:
        kept, lost = made(20, seed=1), made(20, seed=2)
        store.put_many([*kept.items(), *lost.items()])
        store.put_many(made(1, seed=3).items())
        name = store.put_manifest(manifest_of(kept))
        assert collect(store, grace_s=3600).chunks_deleted == 0
        report = collect(store, grace_s=-3600)
        assert report.chunks_deleted == 21
        assert store.missing(kept) == set()
        assert store.missing(lost) == set(lost)
        assert {h: store.get(h) for h in kept} == kept
        assert check(store).ok
        assert usage(store).trash == 0
        store.delete_manifest(name)
        collect(store, grace_s=-3600)
        assert usage(store).chunks == 0

    def test_collections_and_writers_at_once_lose_nothing(
        self, store: BlobStore, opened: Callable[[], BlobStore]
    ) -> None:
        stop = threading.Event()

        def collecting() -> None:
            collector = opened()
            while not stop.is_set():
                collect(collector, grace_s=-3600)

        pool = ThreadPoolExecutor(2)
        collectors = [pool.submit(collecting) for _ in range(2)]
        committed: dict[str, dict[str, bytes]] = {}
        try:
            for round_ in range(self.rounds):
                chunks = made(6, seed=round_ % 3)
                commit_somehow(store, chunks)
                name = manifest_id(manifest_of(chunks))
                assert {h: store.get(h) for h in chunks} == chunks
                committed[name] = chunks
                if round_ % 4 == 3:
                    for doomed in committed:
                        store.delete_manifest(doomed)
                    committed.clear()
        finally:
            stop.set()
            pool.shutdown()
        for collector in collectors:
            collector.result()
        for chunks in committed.values():
            assert {h: store.get(h) for h in chunks} == chunks
        assert check(store).ok

    rounds = 40
    """Number of rounds of the race above; set it lower where a request is slow."""


def made(count: int, *, seed: int = 0, size: int = 2000) -> dict[str, bytes]:
    """Return chunks by hash, the same for the same seed."""
    out = {}
    for n in range(count):
        data = (
            f"{seed}/{n}/".encode() + bytes([seed, n % 251]) * (size // 2) + chunk_hash(f"{seed}{n}".encode()).encode()
        )
        out[chunk_hash(data)] = data
    return out


def manifest_of(chunks: dict[str, bytes]) -> Manifest:
    files = [
        FileEntry(path=f"{n:05d}.bin", size=len(data), chunks=[Chunk(hash=h, size=len(data))])
        for n, (h, data) in enumerate(chunks.items())
    ]
    return Manifest(files=files)


def commit_somehow(store: BlobStore, chunks: dict[str, bytes], tries: int = 5000) -> str:
    """Send missing chunks and commit, as a client does; repeat if a collection has removed chunks in between.

    The limit only detects a store that never lets one commit: two collectors without grace may win dozens of times.
    """
    for _ in range(tries):
        store.put_many((h, chunks[h]) for h in store.missing(chunks))
        try:
            return store.put_manifest(manifest_of(chunks))
        except NotFound:
            continue
    raise AssertionError("never committed")
