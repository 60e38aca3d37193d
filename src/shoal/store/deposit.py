"""Writing of many chunks to a store: written as they come, then made durable and visible together.

Why it is safe: `_lock` protects all fields; files are written outside it. A growing pack is taken out of `_growing` while a
thread writes to it, so each pack has one writer. `flush` runs once at a time (`_flushing`). It sets `_collecting`, which
stops new writers, waits until no thread is writing, takes all staged packs and chunks, and publishes them without holding
`_lock`. `_names` has the chunks since the last flush, so that two threads do not store the same one; a failed write removes
its names again. Staged blobs are invisible until published: a crash loses at most `_FLUSH_S` seconds of work, and a later
garbage collection deletes the leftovers. If publishing fails, the staged blobs are discarded and the caller gets the error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from shoal.core.errors import ShoalError
from shoal.store.blobs import Blobs, Staged
from shoal.store.codec import encode
from shoal.store.hashing import Data
from shoal.store.packfiles.collection import GrowingPack, PackSet, StagedPack
from shoal.store.packfiles.packfile import MOST_CHUNKS

_FLUSH_S = 5.0
"""Seconds between flushes: the work that a killed process may lose. A flush costs a few disk syncs, however much it writes."""
_PACK_FROM = 4
"""Minimum chunks of a pack; fewer are stored as single blobs."""
_GROW_FROM = 1 << 20
"""Minimum bytes of a batch that is added to a growing pack, which later batches continue."""


Encoded = tuple[str, int, Data]
"""A chunk as it is stored: (hash, codec, payload)."""


class Deposit:
    """Batch writer for several threads. Chunks are in the store once `flush` has returned; leaving the context flushes too."""

    def __init__(
        self,
        blobs: Blobs,
        packs: PackSet,
        *,
        missing: Callable[[Iterable[str]], set[str]],
        key: Callable[[str], str],
        compress: bool,
    ):
        self._blobs, self._packs = blobs, packs
        self._missing, self._key, self._compress = missing, key, compress
        self._lock = threading.Condition()
        self._flushing = threading.Lock()
        self._writing, self._collecting = 0, False
        self._names: set[str] = set()
        self._growing: list[GrowingPack] = []
        self._packs_done: list[StagedPack] = []
        self._chunks_done: list[Staged] = []
        self._since = float("inf")

    def __enter__(self) -> Deposit:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        """Flush, also after an error, so that a retry continues from here."""
        with suppress(*((ShoalError, OSError) if failed else ())):
            self.flush()

    def put(self, batch: Mapping[str, tuple[int | None, Data]]) -> set[str]:
        """Write a batch of hash → (codec, payload) and return the hashes that were new.

        Codec None means plain bytes, which are compressed here if that pays. The caller has verified the hashes.
        """
        return self.write(self.prepare(batch))

    def prepare(self, batch: Mapping[str, tuple[int | None, Data]]) -> list[Encoded]:
        """Return the new chunks of a batch, encoded: the CPU-bound half of `put`.

        Prepared chunks belong to the caller and other threads skip them, so write all of them before you flush and commit.
        """
        wanted = self._missing(batch)
        with self._lock:
            wanted -= self._names
            self._names |= wanted
        return [
            (name, *(encode(data, compress=self._compress) if codec is None else (codec, data)))
            for name, (codec, data) in batch.items()
            if name in wanted
        ]

    def write(self, encoded: Sequence[Encoded]) -> set[str]:
        """Write prepared chunks and return their hashes: the disk-bound half of `put`."""
        names = {name for name, _, _ in encoded}
        with self._lock:
            self._lock.wait_for(lambda: not self._collecting)
            self._writing += 1
        is_staged = False
        try:
            self._stage(encoded)
            is_staged = True
        finally:
            with self._lock:
                self._writing -= 1
                self._lock.notify_all()
                if not is_staged:
                    self._names -= names
                self._since = min(self._since, time.monotonic())
                is_due = time.monotonic() - self._since >= _FLUSH_S
        if is_due:
            self.flush()
        return names

    def flush(self) -> None:
        """Make all chunks written so far durable and visible."""
        with self._flushing:
            packs, chunks, growing = self._collect()
            try:
                while growing:
                    packs.append(growing[-1].finish())
                    growing.pop()
                self._packs.publish(packs)
                self._blobs.publish(chunks)
            except BaseException:
                self._blobs.discard([*(pack.blob for pack in packs), *chunks])
                for pack in growing:
                    pack.abandon()
                raise

    def _collect(self) -> tuple[list[StagedPack], list[Staged], list[GrowingPack]]:
        with self._lock:
            # A pack that a thread is writing to may contain chunks of earlier, finished writes.
            self._collecting = True
            self._lock.wait_for(lambda: not self._writing)
            packs, self._packs_done = self._packs_done, []
            chunks, self._chunks_done = self._chunks_done, []
            growing, self._growing = self._growing, []
            self._since = float("inf")
            self._names.clear()
            self._collecting = False
            self._lock.notify_all()
        return packs, chunks, growing

    def _stage(self, encoded: Sequence[Encoded]) -> None:
        if sum(len(payload) for _, _, payload in encoded) >= _GROW_FROM and (pack := self._growing_for(len(encoded))):
            try:
                pack.add(encoded)
            finally:
                self._put_back(pack)
        elif len(encoded) >= _PACK_FROM:
            done = self._packs.stage(encoded)
            with self._lock:
                self._packs_done.append(done)
        else:
            for name, codec, payload in encoded:
                chunk = self._blobs.stage(self._key(name), [bytes([codec]), payload])
                with self._lock:
                    self._chunks_done.append(chunk)

    def _growing_for(self, count: int) -> GrowingPack | None:
        """Return a growing pack with room for `count` chunks, owned by the caller; None if packs cannot grow here."""
        if count > MOST_CHUNKS:
            return None
        with self._lock:
            pack = self._growing.pop() if self._growing else None
        if pack is None or pack.has_room(count):
            return pack or self._packs.grow()
        try:
            done = pack.finish()
        except BaseException:
            self._put_back(pack)  # it contains accepted chunks, which the next flush must publish
            raise
        with self._lock:
            self._packs_done.append(done)
        return self._packs.grow()

    def _put_back(self, pack: GrowingPack) -> None:
        if pack.is_empty:
            pack.abandon()
            return
        with self._lock:
            self._growing.append(pack)
