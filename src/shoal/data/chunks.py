"""Chunks on demand, from memory, from this machine's cache or from the server. Each is fetched once for all readers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Protocol

from shoal.core.artifacts import Chunk
from shoal.data.cache import ChunkCache
from shoal.data.forks import renew_after_fork
from shoal.data.pool import pool
from shoal.store.batches import in_batches

MEMORY = 64 << 20
"""Bytes of chunks kept in memory per process."""
_BATCH_BYTES = 8 << 20
_BATCH_COUNT = 64
_OTHERS_S = 15.0
"""Seconds to wait for a chunk that another process fetches, before we fetch it too: that process may be suspended."""


class Fetcher(Protocol):
    def fetch(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the chunks of these names, each verified."""
        ...


class Chunks:
    def __init__(self, remote: Fetcher, cache: ChunkCache, *, memory: int = MEMORY):
        self.remote, self.cache = remote, cache
        self._limit = memory
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._memory: OrderedDict[str, bytes] = OrderedDict()
        self._held = 0
        self._flying: dict[str, Future[bytes]] = {}

    def get(self, chunks: Sequence[Chunk]) -> list[bytes]:
        """Return the bytes of the chunks, in order."""
        found = self._remembered([c.hash for c in chunks])
        batches = list(_batches([c for c in chunks if c.hash not in found]))
        for batch in batches[1:]:
            pool.submit(self._load, batch)
        for batch in batches:
            found |= self._load(batch)
        return [found[c.hash] for c in chunks]

    def warm(self, chunks: Sequence[Chunk]) -> None:
        """Fetch these chunks in the background. Errors are ignored here; a later `get` tries again and raises them."""
        with self._lock:
            todo = [c for c in chunks if c.hash not in self._memory and c.hash not in self._flying]
        for batch in _batches(todo):
            pool.submit(self._load, batch)

    def _load(self, names: list[str]) -> dict[str, bytes]:
        found = self._remembered(names)
        mine, others = self._claim([n for n in names if n not in found])
        if mine:
            found |= self._obtain(mine)
        for name, flying in others.items():
            try:
                found[name] = flying.result()
            except Exception:
                # The other thread failed; try it here, and raise the error if it fails again.
                found |= self._obtain([name])
        return found

    def _remembered(self, names: list[str]) -> dict[str, bytes]:
        with self._lock:
            found = {n: self._memory[n] for n in names if n in self._memory}
            for name in found:
                self._memory.move_to_end(name)
        return found

    def _claim(self, names: list[str]) -> tuple[list[str], dict[str, Future[bytes]]]:
        """Return the names that this thread must fetch, and the futures of those another thread is fetching."""
        mine: list[str] = []
        others: dict[str, Future[bytes]] = {}
        with self._lock:
            for name in dict.fromkeys(names):
                if name in self._flying:
                    others[name] = self._flying[name]
                else:
                    self._flying[name] = Future()
                    mine.append(name)
        return mine, others

    def _obtain(self, names: list[str]) -> dict[str, bytes]:
        """Get chunks from the cache on disk or the server and wake the threads that wait for them."""
        try:
            found = self._from_outside(names)
        except BaseException as error:
            self._land(names, error)
            raise
        self._land(names, found)
        return found

    def _land(self, names: list[str], outcome: dict[str, bytes] | BaseException) -> None:
        with self._lock:
            landed = [(n, self._flying.pop(n, None)) for n in names]
            if isinstance(outcome, dict):
                self._remember(outcome)
        for name, flying in landed:
            if flying is None:
                continue
            if isinstance(outcome, dict):
                flying.set_result(outcome[name])
            else:
                flying.set_exception(outcome)

    def _remember(self, found: dict[str, bytes]) -> None:
        for name, data in found.items():
            if name not in self._memory:
                self._memory[name] = data
                self._held += len(data)
        while self._held > self._limit:
            self._held -= len(self._memory.popitem(last=False)[1])

    def _from_outside(self, names: list[str]) -> dict[str, bytes]:
        found = {n: data for n in names if (data := self.cache.get(n)) is not None}
        missing = [n for n in names if n not in found]
        if not missing:
            return found
        with self.cache.claim(missing) as claimed:
            found |= self._fetch([n for n in missing if n in claimed])
        late = {n: self.cache.wait(n, _OTHERS_S) for n in missing if n not in claimed}
        found |= {n: data for n, data in late.items() if data is not None}
        return found | self._fetch([n for n, data in late.items() if data is None])

    def _fetch(self, names: list[str]) -> dict[str, bytes]:
        if not names:
            return {}
        fetched = self.remote.fetch(names)
        for name, data in fetched.items():
            self.cache.put(name, data)
        return fetched


def _batches(chunks: Sequence[Chunk]) -> Iterator[list[str]]:
    sizes = {chunk.hash: chunk.size for chunk in chunks}
    return in_batches(sizes.items(), max_bytes=_BATCH_BYTES, max_count=_BATCH_COUNT)
