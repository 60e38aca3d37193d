"""The treaty every store keeps; `shoal.testing.store` holds the contract suite that a backend inherits.

Chunks are immutable and named by the BLAKE3 of their plain bytes. A manifest becomes visible in one atomic step, and only
when all its chunks are there; what is unreferenced may be collected (see gc.py), and nothing else ever is.
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
    hash: str
    size: int
    """Bytes it takes in the store, after compression."""
    modified: float
    """When it was stored, seconds since the epoch by the store's own clock."""


class ChunkStore(ABC):
    """Safe for any number of threads, processes and (on S3) machines at once."""

    @abstractmethod
    def missing(self, hashes: Iterable[str]) -> set[str]:
        """Which of these are not here. A yes is no promise to keep it: only a committed manifest is."""

    def put(self, name: str, data: Data) -> None:
        """Store one chunk. Prefer `put_many`: its cost per chunk is far lower."""
        self.put_many([(name, data)])

    @abstractmethod
    def put_many(self, chunks: Iterable[tuple[str, Data]], *, trusted: bool = False) -> int:
        """Store chunks; all are durable when this returns, and each is whole or absent at any instant before.

        Idempotent: chunks already here are skipped. Bytes that do not match their hash raise Corrupt (unless `trusted`: the
        caller has just hashed this very buffer itself). A full disk raises StorageFull. Returns how many were new.
        """

    @abstractmethod
    def get(self, name: str) -> bytes:
        """The plain bytes, verified: NotFound if absent, Corrupt if they do not match the hash."""

    def get_many(self, names: Iterable[str], *, once: bool = False) -> Iterator[tuple[str, Data]]:
        """(hash, plain bytes) of each, verified like `get`, in any order; some may be views of one larger piece of memory.

        `once`: whoever asks will not need them again soon.
        """
        return ((name, self.get(name)) for name in names)

    @abstractmethod
    def delete(self, hashes: Iterable[str]) -> None:
        """Forget chunks at once; absent ones are fine. Not for general use: `gc.collect` knows what may go."""

    @abstractmethod
    def list(self) -> Iterator[StoredChunk]:
        """Every chunk, in no order."""

    @abstractmethod
    def put_manifest(self, manifest: Manifest) -> str:
        """Commit: durable and visible when this returns its id. NotFound with details["missing"] while chunks are missing.

        Idempotent, and cannot race a garbage collection.
        """

    @abstractmethod
    def get_manifest(self, manifest_id: str) -> Manifest:
        """NotFound if it was never committed, Corrupt if it is damaged."""

    @abstractmethod
    def delete_manifest(self, manifest_id: str) -> None:
        """Make it invisible at once; its chunks go with the next collection. Absent is fine."""

    @abstractmethod
    def list_manifests(self) -> Iterator[str]:
        """Ids of all committed manifests, in no order."""

    def close(self) -> None:  # noqa: B027  most have nothing to let go of
        """Let go of files and connections. The store may not be used afterwards."""

    # The small protocol of transfer.Remote, so that a store on this machine is a remote like any other.
    def send(self, chunks: Iterable[tuple[str, Data]]) -> int:
        return self.put_many(chunks)

    def fetch(self, name: str) -> bytes:
        return self.get(name)


def open_store(url: str | Path) -> ChunkStore:
    """A store by directory, `file://` URL, or `s3://bucket/prefix?endpoint=…&region=…`."""
    text = str(url)
    if text.startswith("s3://"):
        from shoal.store.s3 import S3Store

        return S3Store(text)
    if "://" in text and not text.startswith("file://"):
        raise InvalidSpec(f"{text!r} is not a store: give a directory or an s3:// URL.")
    from shoal.store.local import LocalStore

    return LocalStore(Path(text.removeprefix("file://")))
