"""Chunks on their way into a store: written as they come, made durable and visible many at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from shoal.core.errors import ShoalError
from shoal.store.blobs import Blobs, Staged
from shoal.store.codec import encode
from shoal.store.hashing import Data
from shoal.store.packs import MOST_CHUNKS
from shoal.store.packset import GrowingPack, PackSet, StagedPack

_SETTLE_S = 5.0
"""Work that a killed process may lose. Each settling waits for the disk a few times, however much there is to settle."""
_PACK_FROM = 4
"""Chunks put together go into one pack; fewer than this are stored singly."""
_GROW_FROM = 1 << 20
"""Bytes put together that go into a pack with what comes after them."""


Encoded = tuple[str, int, Data]
"""(hash, codec, payload)."""


class Deposit:
    """For several threads. What was put is in the store once `settle` has returned; leaving the `with` settles too."""

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
        self._settling = threading.Lock()
        self._writing, self._collecting = 0, False
        self._names: set[str] = set()
        self._growing: list[GrowingPack] = []
        self._packs_done: list[StagedPack] = []
        self._chunks_done: list[Staged] = []
        self._since = float("inf")

    def __enter__(self) -> Deposit:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        """Also after an error: whoever tries again goes on from here."""
        with suppress(*((ShoalError, OSError) if failed else ())):
            self.settle()

    def put(self, batch: Mapping[str, tuple[int | None, Data]]) -> set[str]:
        """(codec, payload) by hash; no codec means plain bytes that are compressed here where that pays. Returns what was new.

        Hashes have been verified by the caller.
        """
        return self.write(self.prepare(batch))

    def prepare(self, batch: Mapping[str, tuple[int | None, Data]]) -> list[Encoded]:
        """The half of `put` that keeps a processor busy: what of these is new, as it will be stored.

        What was prepared and not written yet is nobody else's to write: settle, and commit, after all was written.
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
        """The half that waits for the disk."""
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
                is_due = time.monotonic() - self._since >= _SETTLE_S
        if is_due:
            self.settle()
        return names

    def settle(self) -> None:
        """All that was put before is durable and visible when this returns."""
        with self._settling:
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
            # A pack that someone is adding to may hold what was put before.
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
        """One that takes so many, and that nobody else writes to meanwhile."""
        if count > MOST_CHUNKS:
            return None
        with self._lock:
            pack = self._growing.pop() if self._growing else None
        if pack is None or pack.takes(count):
            return pack or self._packs.grow()
        try:
            done = pack.finish()
        except BaseException:
            self._put_back(pack)  # what is in it was taken: whoever settles must not miss it
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
