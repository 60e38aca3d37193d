from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.core.errors import NotFound
from shoal.store.check import check, usage
from shoal.store.gc import GRACE_S, collect
from shoal.store.local import LocalStore
from shoal.testing.store import commit_somehow, made, manifest_of


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


class _Died(BaseException):
    pass


def at_move(store: LocalStore, act: Callable[[str], None], when: str) -> None:
    """Run `act` just before or just after every move the collector makes."""
    move = store.blobs.move

    def wrapped(key: str, to: str) -> bool:
        if when == "before":
            act(key)
        done = move(key, to)
        if when == "after":
            act(key)
        return done

    store.blobs.move = wrapped  # type: ignore[method-assign]


def test_what_is_young_stays(store: LocalStore) -> None:
    store.put_many(made(10).items())
    assert collect(store).chunks_deleted == 0
    assert collect(store, clock=lambda: time.time() + GRACE_S + 60).chunks_deleted == 10


def test_a_dry_run_counts_and_touches_nothing(store: LocalStore) -> None:
    store.put_many(made(10).items())
    assert collect(store, grace_s=-1, dry_run=True).chunks_deleted == 10
    assert store.missing(made(10)) == set()


def test_a_pack_that_is_mostly_dead_is_written_again(store: LocalStore) -> None:
    kept, lost = made(4, seed=1, size=20_000), made(30, seed=2, size=20_000)
    store.put_many({**kept, **lost}.items())
    commit_somehow(store, kept)
    before = usage(store).size
    report = collect(store, grace_s=-1)
    assert report.packs_rewritten == 1
    assert usage(store).size < before
    assert {h: store.get(h) for h in kept} == kept
    assert check(store).ok


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("count", [2, 12])
def test_a_commit_in_the_middle_of_a_collection_is_whole_or_refused(store: LocalStore, when: str, count: int) -> None:
    chunks = made(count)
    store.put_many(chunks.items())
    writer = LocalStore(store.root)
    outcomes: list[bool] = []

    def commit(_: str) -> None:
        if not outcomes:
            try:
                writer.put_manifest(manifest_of(chunks))
                outcomes.append(True)
            except NotFound:
                outcomes.append(False)

    at_move(store, commit, when)
    report = collect(store, grace_s=-1)
    assert outcomes == [when == "before"]
    if outcomes[0]:
        assert report.restored >= 1
        assert {h: writer.get(h) for h in chunks} == chunks
        assert check(writer).ok
    else:
        assert commit_somehow(writer, chunks)
        assert {h: writer.get(h) for h in chunks} == chunks


@pytest.mark.parametrize("count", [1, 12])
def test_a_collection_that_dies_after_hiding_is_finished_by_the_next(store: LocalStore, count: int) -> None:
    needed, garbage = made(count, seed=1), made(count, seed=2)
    store.put_many(needed.items())
    store.put_many(garbage.items())
    victim, writer = LocalStore(store.root), LocalStore(store.root)
    seen = 0

    def die(_: str) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            writer.put_manifest(manifest_of(needed))
        if seen == 2:
            raise _Died

    at_move(victim, die, "before")
    with pytest.raises(_Died):
        collect(victim, grace_s=-1)
    reader = LocalStore(store.root)
    assert {h: reader.get(h) for h in needed} == needed, "read from the trash"
    collect(LocalStore(store.root), grace_s=-1)
    fresh = LocalStore(store.root)
    assert usage(fresh).trash == 0
    assert {h: fresh.get(h) for h in needed} == needed
    assert fresh.missing(garbage) == set(garbage)
    assert check(fresh).ok


def test_what_crashed_writers_left_is_swept_after_a_day(store: LocalStore) -> None:
    commit_somehow(store, made(3))
    leftovers = [store.root / "tmp/half", store.root / f"pending/{'0' * 64}-aa"]
    for path in leftovers:
        path.write_bytes(b"torn")
        os.utime(path, (1, 1))
    (store.root / "tmp/young").write_bytes(b"")
    collect(store, grace_s=0)
    assert not any(path.exists() for path in leftovers)
    assert (store.root / "tmp/young").exists()
