"""Trees on their way to the server: paced requests, and commits until nothing is missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from shoal.client.store import Store
from shoal.core.errors import Refused

if TYPE_CHECKING:
    from shoal.store.hashing import Data
    from shoal.store.pack import Entry, PackedTree, Progress

T = TypeVar("T")

COMMIT_TRIES = 5
COMMIT_TIMEOUT_S = 600.0
REQUEST_S = 1.0
"""What one request should take: a cut-off one loses little, and whoever waits sees something move."""
SMALLEST, LARGEST = 1 << 20, 32 << 20


@dataclass(frozen=True, slots=True)
class Sent:
    packed: PackedTree
    sent: int
    """Bytes that travelled, before compression."""


def send_tree(
    store: Store,
    tree: PackedTree | Sequence[Entry],
    commit: Callable[[PackedTree], list[str]],
    progress: Progress | None = None,
) -> Sent:
    """Send what the server lacks of a tree, then commit it; entries are packed and sent in one pass over their files.

    `commit` tells what is still missing: what the server had may be collected between its answer and the commit.
    """
    from shoal.store.pack import PackedTree
    from shoal.store.transfer import push, upload

    remote = Paced(store, progress)
    if isinstance(tree, PackedTree):
        packed, sent = tree, upload(tree, store, progress=progress)
    else:
        packed, sent = push(list(tree), remote, progress=progress)
    for _ in range(COMMIT_TRIES):
        if not commit(packed):
            return Sent(packed, sent)
        sent += upload(packed, store)
    raise Refused("The server keeps losing parts of what is sent. Try again.", hint="shoal store check")


class Paced:
    """A remote for `shoal.store.transfer.push` whose requests grow and shrink with the speed of the line.

    `progress` hears bytes as they are read; what a request is about to carry is taken back, and counted as it is confirmed.
    """

    def __init__(self, remote: Store, progress: Progress | None, *, clock: Callable[[], float] = time.monotonic):
        self._remote, self._clock = remote, clock
        self._progress = progress or (lambda _: None)
        self._lock = threading.Lock()
        self._size = 4 * SMALLEST

    def missing(self, hashes: Iterable[str]) -> set[str]:
        return self._remote.missing(hashes)

    def fetch(self, name: str) -> bytes:
        return self._remote.fetch(name)

    def send(self, chunks: Iterable[tuple[str, Data]]) -> int:
        todo = list(chunks)
        left, stored = sum(len(data) for _, data in todo), 0
        self._progress(-left)
        try:
            for part in self._parts(todo):
                start = self._clock()
                stored += self._remote.send(part)
                size = sum(len(data) for _, data in part)
                self._adapt(size, self._clock() - start)
                left -= size
                self._progress(size)
        except BaseException:
            self._progress(left)  # it is either tried again, and then taken back again, or all is over
            raise
        return stored

    def _parts(self, todo: list[tuple[str, Data]]) -> Iterator[list[tuple[str, Data]]]:
        part: list[tuple[str, Data]] = []
        size = 0
        for name, data in todo:
            if part and size + len(data) > self._size:
                yield part
                part, size = [], 0
            part.append((name, data))
            size += len(data)
        if part:
            yield part

    def _adapt(self, size: int, took_s: float) -> None:
        with self._lock:
            fitting = size / max(took_s, 1e-3) * REQUEST_S
            self._size = round(min(max((self._size + fitting) / 2, SMALLEST), LARGEST))
