"""The interface of every store. `shoal.testing.store` has the contract tests that a backend inherits.

Chunks are immutable and named by the BLAKE3 hash of their plain bytes. A manifest becomes visible in one atomic step, and
only when all its chunks are stored. Garbage collection (gc.py) deletes unreferenced chunks only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.core.artifacts import Manifest
from shoal.core.errors import InvalidSpec
from shoal.store.hashing import Data


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """One chunk in a store."""

    hash: str
    size: int
    """Bytes in the store, after compression."""
    modified: float
    """Time of storing, in seconds since the epoch by the store's own clock."""


class ChunkStore(ABC):
    """Store of chunks and manifests. Safe for any number of threads, processes and (on S3) machines at the same time."""

    @abstractmethod
    def missing(self, hashes: Iterable[str]) -> set[str]:
        """Return the hashes that are not stored. A stored chunk may still be collected until a committed manifest needs it."""

    def put(self, name: str, data: Data) -> None:
        """Store one chunk. `put_many` costs far less per chunk."""
        self.put_many([(name, data)])

    @abstractmethod
    def put_many(self, chunks: Iterable[tuple[str, Data]], *, trusted: bool = False) -> int:
        """Store chunks and return how many were new. All are durable when this returns; before, each is complete or absent.

        Idempotent: chunks that are already stored are skipped. Raises Corrupt if bytes do not match their hash, unless
        `trusted` says that the caller has just hashed this buffer, and StorageFull if the disk is full.
        """

    @abstractmethod
    def get(self, name: str) -> bytes:
        """Return the verified plain bytes; raise NotFound if absent, Corrupt if they do not match the hash."""

    def get_many(self, names: Iterable[str], *, once: bool = False) -> Iterator[tuple[str, Data]]:
        """Yield (hash, plain bytes) of each chunk, verified like `get`, in any order. Some may be views of a larger buffer.

        `once` says that the caller will not read them again soon, so caching them is pointless.
        """
        return ((name, self.get(name)) for name in names)

    @abstractmethod
    def delete(self, hashes: Iterable[str]) -> None:
        """Delete chunks immediately, ignoring absent ones. Not for general use: `gc.collect` knows which may be deleted."""

    @abstractmethod
    def list(self) -> Iterator[StoredChunk]:
        """Yield every chunk, in no particular order."""

    @abstractmethod
    def put_manifest(self, manifest: Manifest) -> str:
        """Commit a manifest and return its id; it is then durable and visible.

        Raises NotFound with details["missing"] if chunks are missing. Idempotent, and safe against a concurrent garbage
        collection.
        """

    @abstractmethod
    def get_manifest(self, manifest_id: str) -> Manifest:
        """Return a committed manifest; raise NotFound if there is none, Corrupt if it is damaged."""

    @abstractmethod
    def delete_manifest(self, manifest_id: str) -> None:
        """Delete a manifest immediately, if it exists. Its chunks are deleted by the next collection."""

    @abstractmethod
    def list_manifests(self) -> Iterator[str]:
        """Yield the ids of all committed manifests, in no particular order."""

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Close files and connections. The store must not be used afterwards."""

    # These two make a local store usable as a transfer.Remote.
    def send(self, chunks: Iterable[tuple[str, Data]]) -> int:
        return self.put_many(chunks)

    def fetch(self, name: str) -> bytes:
        return self.get(name)


def open_store(url: str | Path) -> ChunkStore:
    """Open a store in a directory, at a `file://` URL, or at `s3://bucket/prefix?endpoint=…&region=…`.

    Example:
        >>> store = open_store("/srv/shoal/store")
    """
    text = str(url)
    if text.startswith("s3://"):
        from shoal.store.s3 import S3Store

        return S3Store(text)
    if "://" in text and not text.startswith("file://"):
        raise InvalidSpec(f"{text!r} is not a store: give a directory or an s3:// URL.")
    from shoal.store.local import LocalStore

    return LocalStore(Path(text.removeprefix("file://")))
