"""The interface of blob storage under a store: objects under keys. Implemented by LocalBlobs (files.py) and S3Blobs (s3.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from shoal.store.hashing import Data


@dataclass(frozen=True, slots=True)
class Blob:
    key: str
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class Staged:
    """A blob that is written but not yet visible or durable."""

    key: str
    place: str
    """Temporary location, known to the storage that staged it."""


class Growing(ABC):
    """A blob whose key and first bytes are known only at the end. For one thread at a time."""

    @abstractmethod
    def write(self, pieces: Sequence[Data], start: int) -> None:
        """Write pieces from `start` on, a multiple of `Blobs.align`, replacing previous bytes."""

    @abstractmethod
    def finish(self, key: str, head: Data) -> Staged:
        """Write the first bytes and close the blob; it is then staged under `key`."""

    @abstractmethod
    def abandon(self) -> None:
        """Discard the blob."""


class Blobs(ABC):
    """Storage of blobs under '/'-separated ASCII keys. At any moment a blob is complete or absent."""

    align = 1
    """Alignment in bytes. Writing is cheapest for pieces with the same offset modulo this in memory and in the blob."""

    @abstractmethod
    def put(self, items: Sequence[tuple[str, Sequence[Data]]]) -> None:
        """Write blobs, each given in pieces, and replace existing ones. All are durable when this returns."""

    def stage(self, key: str, pieces: Sequence[Data]) -> Staged:
        """Write a blob that `publish` makes visible later. This default makes it visible immediately."""
        self.put([(key, pieces)])
        return Staged(key, "")

    def grow(self) -> Growing | None:
        """Return a blob to be staged piece by piece; None if the storage only writes complete blobs."""
        return None

    def publish(self, staged: Sequence[Staged]) -> None:  # noqa: B027  see stage
        """Make staged blobs durable and visible. Many at once cost little more than one."""

    def discard(self, staged: Sequence[Staged]) -> None:  # noqa: B027  unreferenced blobs are collected
        """Delete staged blobs that will not be published. Published ones stay."""

    def probe(self) -> None:
        """Raise an error if nothing can be written now. What it writes is deleted again, or overwritten by the next probe."""
        self.put([("tmp/probe", [b"ok"])])

    @abstractmethod
    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return a blob or a part of it; raise NotFound if it is absent."""

    def view(self, key: str, start: int, length: int, *, once: bool = False) -> memoryview:
        """Return a part of a blob. `once` says that it will not be read again soon and need not be cached."""
        return memoryview(self.get(key, start, length))

    @abstractmethod
    def present(self, keys: Iterable[str]) -> set[str]:
        """Return the keys that exist."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[Blob]:
        """Yield all blobs below a prefix that ends with a slash, such as 'chunks/'."""

    @abstractmethod
    def move(self, key: str, to: str) -> bool:
        """Rename a blob; return False if it does not exist. Afterwards no reader finds `key`."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete blobs, ignoring absent ones."""

    def make_durable(self, keys: Iterable[str]) -> None:  # noqa: B027  most storages acknowledge only durable writes
        """Make visible blobs survive a power failure, also those that another process has just put."""

    def close(self) -> None:  # noqa: B027  files have nothing to close
        """Close connections."""
