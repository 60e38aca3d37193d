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


@dataclass(frozen=True, slots=True)
class Staged:
    """A blob that is written and not yet promised."""

    key: str
    place: str
    """Where it waits, for whoever staged it."""


class Growing(ABC):
    """A blob that is written while its key and its first bytes are not known yet. For one thread at a time."""

    @abstractmethod
    def write(self, pieces: Sequence[Data], start: int) -> None:
        """From `start` on, a multiple of `Blobs.align`; what was there before is replaced."""

    @abstractmethod
    def finish(self, key: str, head: Data) -> Staged:
        """Write its first bytes, and no more after that."""

    @abstractmethod
    def abandon(self) -> None:
        """Forget it."""


class Blobs(ABC):
    """Keys are '/'-separated ASCII. A blob is whole or absent at any instant."""

    align = 1
    """Pieces that lie as far from a multiple of this in memory as in the blob are put with less work."""

    @abstractmethod
    def put(self, items: Sequence[tuple[str, Sequence[Data]]]) -> None:
        """Write blobs, each given in pieces; all are durable when this returns. An existing one is replaced."""

    def stage(self, key: str, pieces: Sequence[Data]) -> Staged:
        """The first half of a put: write a blob, which nobody need see before it is published. Here it is whole at once."""
        self.put([(key, pieces)])
        return Staged(key, "")

    def grow(self) -> Growing | None:
        """A blob to be staged piece by piece; None where they are only written whole."""
        return None

    def publish(self, staged: Sequence[Staged]) -> None:  # noqa: B027  see stage
        """The second half: all are durable and to be seen when this returns. Many at once cost little more than one."""

    def discard(self, staged: Sequence[Staged]) -> None:  # noqa: B027  what nobody refers to is collected
        """Forget what was staged and will not be published; what was published is left alone."""

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
