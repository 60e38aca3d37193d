"""The only implementation of ChunkStore, on top of any blob storage.

Keys: chunks/ab/cdef… (codec byte, payload) · packs/… (many chunks in one blob) · manifests/ab/cdef… · pending/… (manifests
that are being committed) · trash/… (see gc.py) · damaged/… (see check.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from shoal.core.artifacts import Manifest
from shoal.core.errors import Corrupt, NotFound, Refused, ShoalError
from shoal.store.backend import ChunkStore, StoredChunk
from shoal.store.batches import in_batches
from shoal.store.blobs import Blobs
from shoal.store.codec import PLAIN, decode, encode
from shoal.store.deposit import Deposit
from shoal.store.hashing import MAX_CHUNK, Data, check_hash, chunk_hash, verify
from shoal.store.manifest import check_manifest, chunk_hashes, dump_manifest, load_manifest
from shoal.store.packfiles.collection import PackSet
from shoal.store.packfiles.collection import key as pack_key
from shoal.store.packfiles.index import Place

_BATCH_BYTES = 64 << 20
_BATCH_COUNT = 4096
_READS = 3
"""Searches for a chunk that a collection may be moving."""
_MANIFEST_LIMIT = 1 << 30


class BlobStore(ChunkStore):
    """Store on top of a blob storage."""

    def __init__(self, blobs: Blobs, *, index_path: Path | None, compress: bool = True, look_again_s: float = 30.0):
        self.blobs = blobs
        self.packs = PackSet(blobs, index_path, look_again_s=look_again_s)
        self._compress = compress

    def missing(self, hashes: Iterable[str]) -> set[str]:
        wanted = {check_hash(h) for h in hashes}
        return self._absent(wanted.difference(*self.packs.held(wanted).values()))

    def put_many(self, chunks: Iterable[tuple[str, Data]], *, trusted: bool = False) -> int:
        def checked() -> Iterator[tuple[str, None, Data]]:
            for name, data in chunks:
                if len(data) > MAX_CHUNK:
                    raise Corrupt(f"Chunk {name[:12]}… has {len(data)} bytes; the limit is {MAX_CHUNK}.")
                if not trusted:
                    verify(check_hash(name), data)
                yield name, None, data

        return self._put_all(checked())

    def put_stored(self, chunks: Iterable[tuple[str, int, Data]]) -> int:
        """Store (hash, codec, payload) chunks: verify them and keep their encoding. Otherwise like `put_many`."""

        def checked() -> Iterator[tuple[str, int, Data]]:
            for name, codec, payload in chunks:
                verify(check_hash(name), payload if codec == PLAIN else decode(codec, payload))
                yield name, codec, payload

        return self._put_all(checked())

    def deposit(self) -> Deposit:
        """Return a Deposit, for many chunks that become durable together."""
        return Deposit(self.blobs, self.packs, missing=self.missing, key=chunk_key, compress=self._compress)

    def _put_all(self, chunks: Iterable[tuple[str, int | None, Data]]) -> int:
        sized = (((name, (codec, data)), len(data)) for name, codec, data in chunks)
        with self.deposit() as deposit:
            batches = in_batches(sized, max_bytes=_BATCH_BYTES, max_count=_BATCH_COUNT)
            return sum(len(deposit.put(dict(batch))) for batch in batches)

    def get(self, name: str) -> bytes:
        damaged: Corrupt | None = None
        for codec, payload in self._copies(check_hash(name)):
            try:
                plain = decode(codec, payload)
                verify(name, plain)
            except Corrupt as error:
                damaged = error
                continue
            return plain
        if damaged:
            raise Corrupt(f"Chunk {name[:12]}… is damaged in the store.", details={"hash": name}) from damaged
        raise NotFound(f"The store holds no chunk {name[:12]}….", details={"hash": name})

    def get_many(self, names: Iterable[str], *, once: bool = False) -> Iterator[tuple[str, Data]]:
        wanted = dict.fromkeys(map(check_hash, names))
        for name, codec, payload in self.packs.read_places(self.packs.places(wanted), once=once):
            try:
                plain = payload if codec == PLAIN else decode(codec, payload)
                verify(name, plain)
            except Corrupt:
                continue  # `get` below looks for an undamaged copy
            del wanted[name]
            yield name, plain
        for name in wanted:
            yield name, self.get(name)

    def stored(self, names: Iterable[str]) -> tuple[int | None, Iterator[tuple[str, int, Data]]]:
        """Return the total payload size, if known, and an iterator of (hash, codec, payload) as stored.

        Payloads are neither decoded nor verified here; the receiver must do that.
        """
        wanted = dict.fromkeys(map(check_hash, names))
        places = self.packs.places(wanted)
        size = sum(place.length for place in places.values()) if len(places) == len(wanted) else None
        return size, self._stored(wanted, places)

    def _stored(self, wanted: dict[str, None], places: dict[str, Place]) -> Iterator[tuple[str, int, Data]]:
        for name, codec, payload in self.packs.read_places(places):
            if len(payload) == places[name].length:
                del wanted[name]
                yield name, codec, payload
        for name in wanted:
            codec, data = encode(self.get(name), compress=self._compress)
            if name in places and len(data) != places[name].length:
                raise Corrupt(f"Chunk {name[:12]}… was moved during the read. Try again.", details={"hash": name})
            yield name, codec, data

    def delete(self, hashes: Iterable[str]) -> None:
        doomed = {check_hash(h) for h in hashes}
        self.blobs.delete([chunk_key(h) for h in doomed])
        self.packs.remove_chunks(doomed)

    def list(self) -> Iterator[StoredChunk]:
        for blob in self.blobs.list("chunks/"):
            yield StoredChunk(key_name(blob.key), blob.size, blob.modified)
        for blob, entries in self.packs.all():
            for entry in entries:
                yield StoredChunk(entry.hash, entry.length, blob.modified)

    def put_manifest(self, manifest: Manifest) -> str:
        # The reference is published before the chunks are checked; gc.py explains why this order cannot lose a chunk.
        data = dump_manifest(check_manifest(manifest))
        name = chunk_hash(data)
        pending = f"pending/{name}-{secrets.token_hex(8)}"
        codec, payload = encode(data)
        self.blobs.put([(pending, [bytes([codec]), payload])])
        try:
            hashes = {check_hash(h) for h in chunk_hashes(manifest)}
            packed = self.packs.held(hashes)
            single = hashes.difference(*packed.values())
            if missing := self._absent(single):
                raise NotFound(
                    f"{len(missing)} chunks of the manifest are not in the store yet.",
                    details={"missing": sorted(missing)},
                )
            # Other writers may have renamed some chunks into place without having synced the folder yet.
            self.blobs.make_durable([*map(pack_key, packed), *map(chunk_key, single)])
            if not self.blobs.move(pending, manifest_key(name)):
                raise Refused("The commit took too long and was cancelled. Try again.")
        except BaseException:
            with suppress(ShoalError, OSError):  # a later collection deletes it
                self.blobs.delete([pending])
            raise
        return name

    def get_manifest(self, manifest_id: str) -> Manifest:
        return load_manifest(self.manifest_bytes(manifest_key(check_hash(manifest_id)), manifest_id))

    def delete_manifest(self, manifest_id: str) -> None:
        self.blobs.delete([manifest_key(check_hash(manifest_id))])

    def list_manifests(self) -> Iterator[str]:
        for blob in self.blobs.list("manifests/"):
            yield key_name(blob.key)

    def close(self) -> None:
        self.packs.close()
        self.blobs.close()

    def manifest_bytes(self, key: str, manifest_id: str) -> bytes:
        """Return the verified canonical JSON of a manifest under any key, committed or pending."""
        stored = self.blobs.get(key)
        data = decode(stored[0], stored[1:], limit=_MANIFEST_LIMIT) if stored else b""
        if chunk_hash(data) != manifest_id:
            raise Corrupt(f"Manifest {manifest_id[:12]}… is damaged: its bytes do not match its id.")
        return data

    def _absent(self, names: Iterable[str]) -> set[str]:
        """Return the chunks that are not stored as single blobs."""
        single = {chunk_key(name): name for name in names}
        here = self.blobs.present(single)
        return {name for key, name in single.items() if key not in here}

    def _copies(self, name: str) -> Iterator[tuple[int, bytes]]:
        """Yield (codec, payload) of every copy of a chunk, the likeliest place first."""
        yield from self.packs.read(name)
        yield from self._single(chunk_key(name))
        # A running or crashed collection may have moved the chunk to the trash. It may also move between the two places
        # while we read the other one, so both are read several times.
        for _ in range(_READS):
            self.packs.refresh(now=True)
            yield from self.packs.read(name)
            yield from self._single(chunk_key(name))
            trash = [blob.key for blob in self.blobs.list("trash/")]
            for key in trash:
                if trashed_key(key) == chunk_key(name):
                    yield from self._single(key)
            yield from self.packs.read_elsewhere(name, {key: trashed_key(key) for key in trash})

    def _single(self, key: str) -> Iterator[tuple[int, bytes]]:
        try:
            stored = self.blobs.get(key)
        except NotFound:
            return
        yield (stored[0], stored[1:]) if stored else (PLAIN, b"")


def chunk_key(name: str) -> str:
    return f"chunks/{name[:2]}/{name[2:]}"


def manifest_key(name: str) -> str:
    return f"manifests/{name[:2]}/{name[2:]}"


def trash_key(run: str, key: str) -> str:
    """Return the key under which a collection hides a blob. The folder is flat, so no subfolders need creating or removing."""
    return f"trash/{run}~{key.replace('/', '~')}"


def trashed_key(key: str) -> str:
    """Return the original key of a blob in the trash."""
    return key.partition("~")[2].replace("~", "/")


def key_name(key: str) -> str:
    """Return the hash in a key made by chunk_key or manifest_key."""
    return "".join(key.split("/")[-2:])
