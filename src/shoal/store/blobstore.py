"""The one implementation of the treaty, on any place that holds blobs.

Keys: chunks/ab/cdef… (codec byte, payload) · manifests/ab/cdef… · pending/… (manifests about to be committed) · trash/… (see gc.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator

from shoal.core.artifacts import Manifest
from shoal.core.errors import Corrupt, NotFound
from shoal.store.backend import ChunkStore, StoredChunk
from shoal.store.blobs import Blobs
from shoal.store.codec import decode, encode
from shoal.store.hashing import MAX_CHUNK, Data, check_hash, chunk_hash, verify
from shoal.store.manifest import check_manifest, chunk_hashes, dump_manifest, load_manifest

_BATCH_BYTES = 64 << 20
_BATCH_COUNT = 1024


class BlobStore(ChunkStore):
    def __init__(self, blobs: Blobs, *, compress: bool = True):
        self.blobs = blobs
        self._compress = compress

    def missing(self, hashes: Iterable[str]) -> set[str]:
        keys = {_chunk_key(h): h for h in hashes}
        here = self.blobs.present(keys)
        return {h for key, h in keys.items() if key not in here}

    def put_many(self, chunks: Iterable[tuple[str, Data]], *, trusted: bool = False) -> int:
        stored, batch, size = 0, dict[str, Data](), 0
        for name, data in chunks:
            if len(data) > MAX_CHUNK:
                raise Corrupt(f"Chunk {name[:12]}… has {len(data)} bytes; the limit is {MAX_CHUNK}.")
            if not trusted:
                verify(check_hash(name), data)
            batch[name] = data
            size += len(data)
            if size >= _BATCH_BYTES or len(batch) >= _BATCH_COUNT:
                stored += self._put_batch(batch)
                batch, size = {}, 0
        return stored + self._put_batch(batch)

    def get(self, name: str) -> bytes:
        stored = self.blobs.get(_chunk_key(name))
        plain = decode(stored[0], memoryview(stored)[1:]) if stored else b""
        verify(name, plain)
        return plain

    def delete(self, hashes: Iterable[str]) -> None:
        self.blobs.delete([_chunk_key(h) for h in hashes])

    def list(self) -> Iterator[StoredChunk]:
        for blob in self.blobs.list("chunks/"):
            name = blob.key.removeprefix("chunks/").replace("/", "")
            yield StoredChunk(name, blob.size, blob.modified)

    def put_manifest(self, manifest: Manifest) -> str:
        # The reference is published before the chunks are looked for; gc.py explains why this order cannot lose one.
        data = dump_manifest(check_manifest(manifest))
        name = chunk_hash(data)
        pending = f"pending/{name}-{secrets.token_hex(8)}"
        codec, payload = encode(data)
        self.blobs.put([(pending, [bytes([codec]), payload])])
        try:
            if missing := self.missing(chunk_hashes(manifest)):
                raise NotFound(
                    f"{len(missing)} chunks of the manifest are not in the store yet.",
                    details={"missing": sorted(missing)},
                )
        except BaseException:
            self.blobs.delete([pending])
            raise
        self.blobs.move(pending, _manifest_key(name))
        return name

    def get_manifest(self, manifest_id: str) -> Manifest:
        stored = self.blobs.get(_manifest_key(manifest_id))
        data = decode(stored[0], memoryview(stored)[1:], limit=1 << 32) if stored else b""
        if chunk_hash(data) != manifest_id:
            raise Corrupt(f"Manifest {manifest_id[:12]}… is damaged: its bytes do not match its id.")
        return load_manifest(data)

    def delete_manifest(self, manifest_id: str) -> None:
        self.blobs.delete([_manifest_key(manifest_id)])

    def list_manifests(self) -> Iterator[str]:
        for blob in self.blobs.list("manifests/"):
            yield blob.key.removeprefix("manifests/").replace("/", "")

    def close(self) -> None:
        self.blobs.close()

    def _put_batch(self, batch: dict[str, Data]) -> int:
        wanted = self.missing(batch)
        items = []
        for name in wanted:
            codec, payload = encode(batch[name], compress=self._compress)
            items.append((_chunk_key(name), [bytes([codec]), payload]))
        if items:
            self.blobs.put(items)
        return len(items)


def _chunk_key(name: str) -> str:
    check_hash(name)
    return f"chunks/{name[:2]}/{name[2:]}"


def _manifest_key(name: str) -> str:
    check_hash(name)
    return f"manifests/{name[:2]}/{name[2:]}"
