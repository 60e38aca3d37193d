"""The one implementation of the treaty, on any place that holds blobs.

Keys: chunks/ab/cdef… (codec byte, payload) · packs/… (chunks put together) · manifests/ab/cdef… · pending/… (manifests about to be
committed) · trash/… (see gc.py) · damaged/… (see check.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from shoal.core.artifacts import Manifest
from shoal.core.errors import Corrupt, NotFound, Refused, ShoalError
from shoal.store.backend import ChunkStore, StoredChunk
from shoal.store.blobs import Blobs
from shoal.store.codec import PLAIN, decode, encode
from shoal.store.deposit import Deposit
from shoal.store.hashing import MAX_CHUNK, Data, check_hash, chunk_hash, verify
from shoal.store.index import Place
from shoal.store.manifest import check_manifest, chunk_hashes, dump_manifest, load_manifest
from shoal.store.packset import PackSet
from shoal.store.packset import key as pack_key

_BATCH_BYTES = 64 << 20
_BATCH_COUNT = 4096
_LOOKS = 3
_MANIFEST_LIMIT = 1 << 30


class BlobStore(ChunkStore):
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
        """`put_many` of (hash, codec, payload): verified, and then stored as they came, not packed once more."""

        def checked() -> Iterator[tuple[str, int, Data]]:
            for name, codec, payload in chunks:
                verify(check_hash(name), payload if codec == PLAIN else decode(codec, payload))
                yield name, codec, payload

        return self._put_all(checked())

    def deposit(self) -> Deposit:
        """For many chunks in a row that need not be durable one by one."""
        return Deposit(self.blobs, self.packs, missing=self.missing, key=chunk_key, compress=self._compress)

    def _put_all(self, chunks: Iterable[tuple[str, int | None, Data]]) -> int:
        stored, batch, size = 0, dict[str, tuple[int | None, Data]](), 0
        with self.deposit() as deposit:
            for name, codec, data in chunks:
                batch[name] = codec, data
                size += len(data)
                if size >= _BATCH_BYTES or len(batch) >= _BATCH_COUNT:
                    stored += len(deposit.put(batch))
                    batch, size = {}, 0
            stored += len(deposit.put(batch))
        return stored

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
                continue  # there may be a better copy
            del wanted[name]
            yield name, plain
        for name in wanted:
            yield name, self.get(name)

    def stored(self, names: Iterable[str]) -> tuple[int | None, Iterator[tuple[str, int, Data]]]:
        """(hash, codec, payload) of each as it is stored, for someone who verifies it: neither unpacked nor looked at here.

        With it comes how many bytes all payloads have, where that is known.
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
                raise Corrupt(f"Chunk {name[:12]}… was moved meanwhile.", details={"hash": name})
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
        # The reference is published before the chunks are looked for; gc.py explains why this order cannot lose one.
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
            # Some may have been put by others, who have renamed them into place but not yet synced the folder.
            self.blobs.settle([*map(pack_key, packed), *map(chunk_key, single)])
            if not self.blobs.move(pending, manifest_key(name)):
                raise Refused("The commit took too long and was given up. Try again.")
        except BaseException:
            with suppress(ShoalError, OSError):  # a collection removes it one day
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
        """The canonical JSON of a manifest under any key (committed or pending), verified."""
        stored = self.blobs.get(key)
        data = decode(stored[0], stored[1:], limit=_MANIFEST_LIMIT) if stored else b""
        if chunk_hash(data) != manifest_id:
            raise Corrupt(f"Manifest {manifest_id[:12]}… is damaged: its bytes do not match its id.")
        return data

    def _absent(self, names: Iterable[str]) -> set[str]:
        """Which of these are not stored singly."""
        single = {chunk_key(name): name for name in names}
        here = self.blobs.present(single)
        return {name for key, name in single.items() if key not in here}

    def _copies(self, name: str) -> Iterator[tuple[int, bytes]]:
        """(codec, payload) from wherever the chunk may be, likeliest first."""
        yield from self.packs.read(name)
        yield from self._single(chunk_key(name))
        # A collection may be putting it back at this moment, or was cut off before it could: it may be in the trash, and
        # while one place is looked at it may move to the other.
        for _ in range(_LOOKS):
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
    """Where a collection hides a blob. One flat folder: none of its own to make or remove."""
    return f"trash/{run}~{key.replace('/', '~')}"


def trashed_key(key: str) -> str:
    return key.partition("~")[2].replace("~", "/")


def key_name(key: str) -> str:
    """The hash in a key made by chunk_key or manifest_key."""
    return "".join(key.split("/")[-2:])
