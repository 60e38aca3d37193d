"""The packs of a store: writing, finding and reading of the chunks in them.

Why it is safe: packs are immutable, so readers need no locks; a pack that a collection removes while it is read raises
NotFound and is dropped from the index. A GrowingPack belongs to one thread at a time (see deposit.py). The index has its own
lock. Two threads may refresh at the same time: both add the same entries. A pack is published before it is added to the
index, so the index never leads to a pack that was not complete.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shoal.core.errors import Corrupt, NotFound
from shoal.store.blobs import Blob, Blobs, Growing, Staged
from shoal.store.hashing import Data
from shoal.store.packfiles.index import PackIndex, Place
from shoal.store.packfiles.packfile import (
    HEAD_ROOM,
    MOST_CHUNKS,
    PackedChunk,
    build_head,
    build_pack,
    lay_out,
    read_head,
)

logger = logging.getLogger(__name__)

PREFIX = "packs/"

_RUN = 8 << 20
"""Maximum bytes of one read."""
_GROWN = 64 << 20
"""Size at which a growing pack is finished."""
_GAP = 64 << 10
"""Maximum gap between two chunks that are still read together."""


@dataclass(frozen=True, slots=True)
class StagedPack:
    """A pack that is written and not yet published."""

    name: str
    entries: Sequence[PackedChunk]
    blob: Staged


class GrowingPack:
    """A pack that is written while chunks arrive, so that few are in memory. For one thread at a time."""

    def __init__(self, blob: Growing, align: int):
        self._blob, self._align = blob, align
        self._entries: list[PackedChunk] = []
        self._end = HEAD_ROOM

    @property
    def is_empty(self) -> bool:
        return not self._entries

    def has_room(self, count: int) -> bool:
        """Check whether the pack has room for `count` more chunks."""
        return self._end < _GROWN and len(self._entries) + count <= MOST_CHUNKS

    def add(self, chunks: Sequence[tuple[str, int, Data]]) -> None:
        """Add chunks as (hash, codec, payload). After an error the pack is as it was before."""
        entries, pieces = lay_out(chunks, self._end, align=self._align)
        self._blob.write(pieces, self._end)
        self._entries += entries
        self._end = -(-(entries[-1].offset + entries[-1].length) // self._align) * self._align

    def finish(self) -> StagedPack:
        """Write the head and return the staged pack."""
        name, head = build_head(self._entries)
        return StagedPack(name, self._entries, self._blob.finish(key(name), head))

    def abandon(self) -> None:
        self._blob.abandon()


class PackSet:
    """All packs of a blob storage, with their index."""

    def __init__(self, blobs: Blobs, index_path: Path | None, *, look_again_s: float = 30.0):
        """Open the packs. `look_again_s` is the minimum time between two searches for packs of other processes.

        A pack that is not found yet does no harm: its chunks are only sent twice.
        """
        self._blobs = blobs
        self._look_again_s = look_again_s
        self.index = PackIndex(index_path)
        self._refreshed_at = float("-inf")

    def write(self, chunks: Sequence[tuple[str, int, Data]]) -> str:
        """Write a pack of (hash, codec, payload) chunks and return its name; it is then durable."""
        name, entries, pieces = build_pack(chunks, align=self._blobs.align)
        self._blobs.put([(key(name), pieces)])
        self.index.add({name: entries})
        return name

    def stage(self, chunks: Sequence[tuple[str, int, Data]]) -> StagedPack:
        """Write a pack that `publish` makes durable and visible later."""
        name, entries, pieces = build_pack(chunks, align=self._blobs.align)
        return StagedPack(name, entries, self._blobs.stage(key(name), pieces))

    def grow(self) -> GrowingPack | None:
        """Return a pack to be staged piece by piece; None if the storage cannot do that."""
        blob = self._blobs.grow()
        return GrowingPack(blob, self._blobs.align) if blob else None

    def publish(self, staged: Sequence[StagedPack]) -> None:
        """Make staged packs durable and visible."""
        self._blobs.publish([pack.blob for pack in staged])
        self.index.add({pack.name: pack.entries for pack in staged})

    def find(self, hashes: Iterable[str]) -> dict[str, Place]:
        """Return the place of each chunk that is in an existing pack. Of several places it is always the same one."""
        self.refresh()
        found = self.index.find(hashes)
        packs = {place.pack for places in found.values() for place in places}
        here = self._blobs.present([key(p) for p in packs])
        gone = {p for p in packs if key(p) not in here}
        self.index.drop(gone)
        left = {h: [place for place in places if place.pack not in gone] for h, places in found.items()}
        return {h: min(places, key=lambda place: place.pack) for h, places in left.items() if places}

    def held(self, hashes: Iterable[str]) -> dict[str, set[str]]:
        """Return, for each existing pack, which of the chunks it contains."""
        self.refresh()
        found = self.index.held(hashes)
        here = self._blobs.present([key(p) for p in found])
        gone = {p for p in found if key(p) not in here}
        self.index.drop(gone)
        return {pack: chunks for pack, chunks in found.items() if pack not in gone}

    def read(self, name: str) -> Iterator[tuple[int, bytes]]:
        """Yield (codec, payload) of each copy of a chunk in the packs known so far."""
        for place in self.index.find([name]).get(name, ()):
            try:
                yield place.codec, self._blobs.get(key(place.pack), place.offset, place.length)
            except NotFound:
                self.index.drop([place.pack])

    def places(self, names: Iterable[str]) -> dict[str, Place]:
        """Return one place of each chunk in the packs known so far. Unlike with `find`, the packs may no longer exist."""
        return {name: min(places) for name, places in self.index.find(names).items()}

    def read_places(self, places: Mapping[str, Place], *, once: bool = False) -> Iterator[tuple[str, int, memoryview]]:
        """Yield (hash, codec, payload) in pack order, many per read. Chunks of packs that no longer exist are left out."""
        for run in _runs(sorted((place, name) for name, place in places.items())):
            first, last = run[0][0], run[-1][0]
            try:
                view = self._blobs.view(
                    key(first.pack), first.offset, last.offset + last.length - first.offset, once=once
                )
            except NotFound:
                self.index.drop([first.pack])
                continue
            for place, name in run:
                start = place.offset - first.offset
                yield name, place.codec, view[start : start + place.length]

    def read_elsewhere(self, name: str, moved: Mapping[str, str]) -> Iterator[tuple[int, bytes]]:
        """Yield (codec, payload) of a chunk from packs that are stored under another key, such as in the trash."""
        for place, original in moved.items():
            if not original.startswith(PREFIX):
                continue
            read = partial(self._blobs.get, place)
            with suppress(NotFound, Corrupt):
                for entry in read_head(original.removeprefix(PREFIX), read):
                    if entry.hash == name:
                        yield entry.codec, read(entry.offset, entry.length)

    def refresh(self, *, now: bool = False) -> None:
        """Add packs of other processes, or from before a crash, to the index, and drop those that no longer exist."""
        if self.index.complete and not now and time.monotonic() - self._refreshed_at < self._look_again_s:
            return
        self._refreshed_at = time.monotonic()
        known = self.index.packs()
        here = {blob_name(blob) for blob in self._blobs.list(PREFIX)}
        for name in here - known:
            try:
                self.index.add({name: self.head(name)})
            except NotFound:
                continue  # deleted by a collection in the meantime
            except Corrupt as error:
                logger.warning("%s", error.message)
        self.index.drop(known - here)
        self.index.complete = True

    def head(self, name: str) -> list[PackedChunk]:
        """Return all chunks listed in a pack's head; raise NotFound or Corrupt."""
        return read_head(name, lambda offset, length: self._blobs.get(key(name), offset, length))

    def all(self) -> Iterator[tuple[Blob, list[PackedChunk]]]:
        """Yield each pack with the chunks that are read from it. Its other chunks are read from a copy in another pack."""
        self.refresh(now=True)
        for blob in self._blobs.list(PREFIX):
            name = blob_name(blob)
            entries = self.index.entries(name)
            places = self.find(e.hash for e in entries)
            yield blob, [e for e in entries if e.hash in places and places[e.hash].pack == name]

    def remove_chunks(self, hashes: Iterable[str]) -> None:
        """Rewrite the packs that contain these chunks without them."""
        doomed = set(hashes)
        for pack in {place.pack for places in self.index.find(doomed).values() for place in places}:
            self.copy(pack, [e for e in self.index.entries(pack) if e.hash not in doomed])
            self._blobs.delete([key(pack)])
            self.index.drop([pack])

    def copy(self, pack: str, entries: Sequence[PackedChunk]) -> str | None:
        """Copy chunks of a pack into a new pack and return its name. The old pack stays until the caller removes it."""
        if not entries:
            return None
        return self.write([(e.hash, e.codec, self._blobs.get(key(pack), e.offset, e.length)) for e in entries])

    def close(self) -> None:
        self.index.close()


def _runs(places: Sequence[tuple[Place, str]]) -> Iterator[list[tuple[Place, str]]]:
    """Group sorted places into runs that one read covers."""
    run: list[tuple[Place, str]] = []
    for place, name in places:
        if run:
            first, last = run[0][0], run[-1][0]
            end = last.offset + last.length
            is_near = place.pack == last.pack and 0 <= place.offset - end <= _GAP
            if not is_near or place.offset + place.length - first.offset > _RUN:
                yield run
                run = []
        run.append((place, name))
    if run:
        yield run


def key(name: str) -> str:
    return f"{PREFIX}{name}"


def blob_name(blob: Blob) -> str:
    return blob.key.removeprefix(PREFIX)
