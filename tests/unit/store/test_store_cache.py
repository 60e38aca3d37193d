from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.core.artifacts import Manifest
from shoal.core.errors import NotFound, StorageFull
from shoal.store import cache as cache_module
from shoal.store.cache import NodeCache
from shoal.store.local import LocalStore
from shoal.store.manifest import manifest_id
from shoal.store.pack import pack_tree
from shoal.testing.store import commit_somehow, made, manifest_of

Stored = Callable[..., Manifest]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def cache(tmp_path: Path) -> NodeCache:
    return NodeCache(tmp_path / "cache", max_bytes=100_000)


@pytest.fixture
def stored(store: LocalStore) -> Stored:
    def store_one(seed: int, count: int = 4, size: int = 5_000) -> Manifest:
        chunks = made(count, seed=seed, size=size)
        return store.get_manifest(commit_somehow(store, chunks))

    return store_one


def never(_: str) -> bytes:
    raise AssertionError("fetched again")


def cached(cache: NodeCache) -> set[str]:
    return {t.id for t in cache.trees()}


def test_a_tree_is_made_once_and_shared(cache: NodeCache, store: LocalStore, stored: Stored) -> None:
    manifest = stored(1)
    first = cache.use("dataset", manifest, store.get)
    second = cache.use("dataset", manifest, never)
    assert first.path == second.path == cache.root / "dataset" / manifest_id(manifest)
    assert manifest_id(pack_tree(first.path, ignore=False).manifest) == manifest_id(manifest)
    assert not any(p.stat().st_mode & 0o222 for p in first.path.rglob("*"))
    first.release()
    first.release()
    second.release()


def test_the_least_recently_used_goes_first_and_what_is_in_use_never(
    cache: NodeCache, store: LocalStore, stored: Stored
) -> None:
    manifests = [stored(n, count=6) for n in range(5)]  # 30 kB each, three fit
    held = cache.use("dataset", manifests[0], store.get)
    for age, manifest in enumerate(manifests[1:3]):
        with cache.use("dataset", manifest, store.get):
            pass
        os.utime(cache._lock_path("dataset", manifest_id(manifest)), (1000 + age, 1000 + age))
    with cache.use("dataset", manifests[3], store.get):
        pass
    ids = [manifest_id(m) for m in manifests]
    assert cached(cache) == {ids[0], ids[2], ids[3]}
    assert held.path.is_dir()
    held.release()
    cache.evict(0)
    assert cached(cache) == set()


def test_a_tree_larger_than_the_cap_is_made_all_the_same(cache: NodeCache, store: LocalStore, stored: Stored) -> None:
    with cache.use("dataset", stored(1, count=40), store.get) as use:
        assert len(list(use.path.iterdir())) == 40


def test_many_callers_of_one_tree_fetch_it_once(cache: NodeCache, store: LocalStore, stored: Stored) -> None:
    manifest = stored(1)
    fetched: list[str] = []

    def get(name: str) -> bytes:
        fetched.append(name)
        return store.get(name)

    with ThreadPoolExecutor(8) as pool:
        uses = list(pool.map(lambda _: cache.use("dataset", manifest, get), range(8)))
    assert len(fetched) == 4
    for use in uses:
        use.release()


def test_a_failed_fetch_leaves_nothing_and_the_next_caller_tries_again(
    cache: NodeCache, store: LocalStore, stored: Stored
) -> None:
    manifest = stored(1)

    def fail(_: str) -> bytes:
        raise NotFound("gone")

    with pytest.raises(NotFound):
        cache.use("dataset", manifest, fail)
    assert cached(cache) == set()
    with cache.use("dataset", manifest, store.get) as use:
        assert use.path.is_dir()


def test_equal_files_of_another_tree_are_linked_not_fetched(cache: NodeCache, store: LocalStore) -> None:
    chunks = made(6, size=5_000)
    first = store.get_manifest(commit_somehow(store, chunks))
    with cache.use("dataset", first, store.get):
        pass
    changed = {**dict(list(chunks.items())[:5]), **made(1, seed=9)}
    second = store.get_manifest(commit_somehow(store, changed))
    fetched: list[str] = []
    with cache.use("dataset", second, lambda h: fetched.append(h) or store.get(h)) as use:  # type: ignore[func-returns-value]
        assert len(fetched) == 1
        assert manifest_id(pack_tree(use.path, ignore=False).manifest) == manifest_id(second)
    cache.evict(0)
    assert cached(cache) == set()


def test_a_tree_someone_wrote_to_is_made_again(cache: NodeCache, store: LocalStore, stored: Stored) -> None:
    manifest = stored(1)
    with cache.use("dataset", manifest, store.get) as use:
        victim = next(use.path.iterdir())
    victim.chmod(0o644)
    victim.write_bytes(b"x" * victim.stat().st_size)
    with cache.use("dataset", manifest, store.get) as use:
        assert manifest_id(pack_tree(use.path, ignore=False).manifest) == manifest_id(manifest)


@pytest.mark.parametrize("damaged", [True, False])
def test_after_a_reboot_a_tree_is_verified_before_use(
    cache: NodeCache, store: LocalStore, stored: Stored, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    manifest = stored(1)
    with cache.use("dataset", manifest, store.get) as use:
        victim = next(use.path.iterdir())
    if damaged:
        info = victim.stat()
        victim.chmod(0o644)
        victim.write_bytes(bytes(info.st_size))
        os.utime(victim, ns=(info.st_mtime_ns, info.st_mtime_ns))
    monkeypatch.setattr(cache_module, "_boot_id", lambda: "another boot")
    fetched: list[str] = []
    with cache.use("dataset", manifest, lambda h: fetched.append(h) or store.get(h)) as use:  # type: ignore[func-returns-value]
        assert manifest_id(pack_tree(use.path, ignore=False).manifest) == manifest_id(manifest)
    assert bool(fetched) is damaged


def test_a_full_disk_gives_back_what_is_unused_and_tries_again(
    small_disk: Path, store: LocalStore, stored: Stored
) -> None:
    cache = NodeCache(small_disk / "cache", max_bytes=1 << 40)
    old, new, huge = stored(1, 20, 120_000), stored(2, 20, 120_000), stored(3, 50, 120_000)
    with cache.use("dataset", old, store.get):
        pass
    with cache.use("dataset", new, store.get):
        with pytest.raises(StorageFull):
            cache.use("dataset", huge, store.get)
        assert cached(cache) == {manifest_id(new)}


HOLDER = """
import sys, time, os
from pathlib import Path
from shoal.store.cache import NodeCache
from shoal.store.local import LocalStore
store = LocalStore(Path(sys.argv[1]))
use = NodeCache(Path(sys.argv[2]), 10).use("dataset", store.get_manifest(sys.argv[3]), store.get)
if sys.argv[4] == "child":
    os.set_inheritable(use.fd, True)
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(600)
else:
    print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("heir", [False, True])
def test_kill_dash_nine_frees_a_tree_unless_a_worker_still_holds_it(
    cache: NodeCache, store: LocalStore, stored: Stored, heir: bool
) -> None:
    manifest = stored(1)
    args = [sys.executable, "-c", HOLDER, store.root, cache.root, manifest_id(manifest), "child" if heir else "alone"]
    agent = subprocess.Popen(args, stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    holder = int(agent.stdout.readline())
    assert cache.evict(0) == 0
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    agent.stdout.close()
    assert bool(cache.evict(0)) is not heir
    if heir:
        os.kill(holder, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while not cache.evict(0) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert cached(cache) == set()


MAKER = """
import sys, time
from pathlib import Path
from shoal.store.cache import NodeCache
from shoal.store.local import LocalStore
store = LocalStore(Path(sys.argv[1]))
def get(name):
    print("fetching", flush=True)
    time.sleep(600)
NodeCache(Path(sys.argv[2]), 10**9).use("dataset", store.get_manifest(sys.argv[3]), get)
"""


def test_kill_dash_nine_of_the_maker_leaves_the_tree_to_the_next(
    cache: NodeCache, store: LocalStore, stored: Stored
) -> None:
    manifest = stored(1)
    args = [sys.executable, "-c", MAKER, store.root, cache.root, manifest_id(manifest)]
    maker = subprocess.Popen(args, stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    maker.stdout.readline()
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    maker.stdout.close()
    assert cached(cache) == set()
    with cache.use("dataset", manifest, store.get) as use:
        assert manifest_id(pack_tree(use.path, ignore=False).manifest) == manifest_id(manifest)
    assert list(cache.root.glob("*/.*.tmp")) == []


def test_an_empty_manifest_has_a_tree_too(cache: NodeCache, store: LocalStore) -> None:
    with cache.use("dataset", manifest_of({}), store.get) as use:
        assert list(use.path.iterdir()) == []
