from __future__ import annotations

from pathlib import Path

import pytest

from shoal.store.check import check, usage
from shoal.store.local import LocalStore
from shoal.testing.store import commit_somehow, made


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def test_a_sound_store_is_ok(store: LocalStore) -> None:
    commit_somehow(store, made(20))
    commit_somehow(store, made(2, seed=1))
    report = check(store)
    assert (report.ok, report.chunks, report.hurt) == (True, 22, {})


def test_damage_is_named_with_the_manifests_it_hurts(store: LocalStore) -> None:
    hurt = commit_somehow(store, made(2, seed=1))
    commit_somehow(store, made(20, seed=2))
    flip(next((store.root / "chunks").rglob("*/*")), 30)
    report = check(store)
    assert not report.ok
    assert len(report.damaged) == 1
    assert report.hurt == {hurt: report.damaged}


def test_what_is_missing_is_named(store: LocalStore) -> None:
    name = commit_somehow(store, made(2))
    lost = next((store.root / "chunks").rglob("*/*"))
    lost.unlink()
    report = check(store)
    assert report.hurt == {name: report.missing} == {name: {lost.parent.name + lost.name}}


@pytest.mark.parametrize("where", ["payload", "head"])
def test_quarantine_keeps_what_is_sound_and_a_new_push_heals(store: LocalStore, where: str) -> None:
    chunks = made(20)
    commit_somehow(store, chunks)
    (pack,) = (store.root / "packs").iterdir()
    flip(pack, -5 if where == "payload" else 20)
    report = check(store, quarantine=True)
    assert not report.ok
    bad = store.missing(chunks)
    assert len(bad) == (1 if where == "payload" else 0)
    assert all(store.get(h) == chunks[h] for h in chunks if h not in bad)
    commit_somehow(store, chunks)
    assert check(store).ok
    assert {h: store.get(h) for h in chunks} == chunks


def test_a_sound_second_copy_is_used_when_the_first_is_damaged(store: LocalStore) -> None:
    chunks = made(5)
    store.put_many(chunks.items())
    (pack,) = (store.root / "packs").iterdir()
    store.packs.copy(pack.name, store.packs.index.entries(pack.name)[:4])
    for entry in store.packs.head(pack.name):
        flip(pack, entry.offset)
    readable = [h for h in chunks if _readable(store, h)]
    assert len(readable) == 4


def _readable(store: LocalStore, name: str) -> bool:
    try:
        return bool(store.get(name))
    except Exception:
        return False


def test_usage_counts_shared_bytes_once(store: LocalStore) -> None:
    chunks = made(20, size=10_000)
    commit_somehow(store, chunks)
    commit_somehow(store, dict(list(chunks.items())[:10]))
    used = usage(store)
    assert (used.manifests, used.chunks, used.packs) == (2, 20, 1)
    assert used.logical == sum(map(len, chunks.values())) * 3 // 2 or used.logical > used.size
    assert used.size < used.logical
