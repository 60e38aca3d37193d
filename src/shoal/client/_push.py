"""Trees on their way to the server: packed and sent in one pass, then committed until nothing is missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.client.store import Store
from shoal.core.errors import Refused

if TYPE_CHECKING:
    from shoal.store.hashing import Data
    from shoal.store.known import KnownFiles
    from shoal.store.pack import Entry, PackedTree, Progress

COMMIT_TRIES = 5
COMMIT_TIMEOUT_S = 600.0
REQUEST_S = 1.0
"""What one request should take: a cut-off one loses little, and whoever waits sees something move."""
SMALLEST, LARGEST = 1 << 20, 24 << 20
MOST_CHUNKS = 512
MOST_UNASKED = 4
"""Batches sent without asking, after more questions in a row to which all was missing: what a server has comes in runs."""
THREADS = 3


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
    known: KnownFiles | None = None,
) -> Sent:
    """Send what the server lacks of a tree, then commit it; entries are packed and sent in one pass over their files.

    `commit` tells what is still missing: what the server had may be collected between its answer and the commit.
    `progress` counts what the server has, and may raise to stop everything. Files that are `known` are read only where the
    server lacks something of them.
    """
    from shoal.store.pack import PackedTree
    from shoal.store.transfer import upload

    if isinstance(tree, PackedTree):
        packed, sent = tree, upload(tree, store, progress=progress)
    else:
        packed, sent = _pack_and_send(list(tree), store, progress or (lambda _: None), known)
    for _ in range(COMMIT_TRIES):
        if not commit(packed):
            return Sent(packed, sent)
        sent += upload(packed, store)
    raise Refused("The server keeps losing parts of what is sent. Try again.", hint="shoal store check")


def _pack_and_send(
    entries: list[Entry], store: Store, progress: Progress, known: KnownFiles | None
) -> tuple[PackedTree, int]:
    from shoal.store.pack import pack_entries

    def take_back(num_bytes: int) -> None:
        if num_bytes < 0:  # a file changed while it was read, and is read again
            progress(num_bytes)

    with Sender(store, progress) as sender:
        packed = pack_entries(entries, progress=take_back, sink=sender.take, abort=sender.abort, known=known)
        _send_unread(packed, store, sender, progress)
        sender.finish()
    return packed, sender.sent


def _send_unread(packed: PackedTree, store: Store, sender: Sender, progress: Progress) -> None:
    """What the server lacks of files that were not read, as they were known."""
    from shoal.store.transfer import find_missing

    unread = [f for f in packed.manifest.files if f.path in packed.unread]
    sizes = {chunk.hash: chunk.size for file in unread for chunk in file.chunks}
    lacking = find_missing(store, sizes)
    progress(sum(f.size for f in unread) - sum(sizes[name] for name in lacking))
    for name in lacking:
        sender.take([(name, memoryview(packed.read(name)))])


class Sender:
    """Gathers chunks into requests that grow and shrink with the speed of the line, and sends what the server lacks.

    Blocks whoever brings chunks when the line is slower than they are.
    """

    def __init__(self, store: Store, progress: Progress, *, clock: Callable[[], float] = time.monotonic):
        self.sent = 0
        self._store, self._progress, self._clock = store, progress, clock
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="shoal-send")
        self._room = threading.Semaphore(THREADS + 1)
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._batch: list[tuple[str, Data]] = []
        self._size = 0
        self._target = SMALLEST
        self._lacked = self._unasked = 0
        """Questions in a row to which all was missing, and batches that need none after them."""
        self._error: BaseException | None = None

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()
        self._pool.shutdown(cancel_futures=True)

    def abort(self) -> None:
        """Let go of all who wait here."""
        self._error = self._error or InterruptedError("The push was given up.")

    def take(self, chunks: Sequence[tuple[str, memoryview]]) -> None:
        """Chunks, from any thread. Their bytes are kept until they are sent."""
        self._check()
        full: list[list[tuple[str, Data]]] = []
        known = 0
        with self._lock:
            for name, data in chunks:
                if name in self._seen:
                    known += len(data)
                    continue
                self._seen.add(name)
                self._batch.append((name, data))
                self._size += len(data)
                if self._size >= self._target or len(self._batch) >= MOST_CHUNKS:
                    full.append(self._batch)
                    self._batch, self._size = [], 0
        if known:
            self._progress(known)
        for batch in full:
            self._submit(batch)

    def finish(self) -> None:
        """Until all is sent."""
        if self._batch:
            self._submit(self._batch)
        self._pool.shutdown()
        self._check()

    def _submit(self, batch: list[tuple[str, Data]]) -> None:
        while not self._room.acquire(timeout=0.1):
            self._check()
        self._pool.submit(self._send, batch)

    def _check(self) -> None:
        if self._error:
            raise self._error

    def _send(self, batch: list[tuple[str, Data]]) -> None:
        from shoal.store.transfer import with_retries

        try:
            if self._error is None:
                sent = with_retries(lambda: self._send_lacking(batch), before_retry=self._begin_again)
                with self._lock:
                    self.sent += sent
                self._progress(sum(len(data) for _, data in batch))
        except BaseException as error:
            self._error = self._error or error
        finally:
            self._room.release()

    def _send_lacking(self, batch: list[tuple[str, Data]]) -> int:
        todo = self._lacking(batch)
        size = sum(len(data) for _, data in todo)
        start = self._clock()
        if todo:
            self._store.send(todo)
        # What is already there costs a question only, and large batches ask fewer.
        fitting = size / max(self._clock() - start, 1e-3) * REQUEST_S if size else LARGEST
        with self._lock:
            self._target = round(min(max((self._target + fitting) / 2, SMALLEST), LARGEST))
        return size

    def _lacking(self, batch: list[tuple[str, Data]]) -> list[tuple[str, Data]]:
        with self._lock:
            if self._unasked:
                self._unasked -= 1
                return batch
        lacking = self._store.missing([name for name, _ in batch])
        with self._lock:
            self._lacked = self._lacked + 1 if len(lacking) == len(batch) else 0
            self._unasked = min(max(self._lacked - 1, 0), MOST_UNASKED)
        return [(name, data) for name, data in batch if name in lacking]

    def _begin_again(self) -> None:
        """Some of what was sent may have arrived."""
        self._check()
        with self._lock:
            self._lacked = self._unasked = 0
