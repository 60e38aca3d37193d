"""What a place must offer to hold a store: whole objects under keys. LocalBlobs (files.py) and S3Blobs (s3.py) do."""

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


class Blobs(ABC):
    """Keys are '/'-separated ASCII. A blob is whole or absent at any instant."""

    @abstractmethod
    def put(self, items: Sequence[tuple[str, Sequence[Data]]]) -> None:
        """Write blobs, each given in pieces; all are durable when this returns. An existing one is replaced."""

    @abstractmethod
    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """The blob or a part of it. NotFound."""

    def view(self, key: str, start: int, length: int, *, once: bool = False) -> memoryview:
        """A part of a blob. `once`: whoever asks will not need it again soon, so that it need not be kept in memory."""
        return memoryview(self.get(key, start, length))

    @abstractmethod
    def present(self, keys: Iterable[str]) -> set[str]: ...

    @abstractmethod
    def list(self, prefix: str) -> Iterator[Blob]:
        """All blobs below a folder-like prefix such as 'chunks/'."""

    @abstractmethod
    def move(self, key: str, to: str) -> bool:
        """Rename; False if it is not there. Afterwards `key` is absent for everyone."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Absent ones are fine."""

    def settle(self, keys: Iterable[str]) -> None:  # noqa: B027  most places acknowledge nothing that could still vanish
        """Make sure that blobs another process has just put, and that are here already, survive a power cut too."""

    def close(self) -> None:  # noqa: B027  files have nothing to let go of
        """Let go of connections."""
