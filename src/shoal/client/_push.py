"""Upload of trees: packed and sent in one pass, then committed until no chunk is missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.client.store import Store

if TYPE_CHECKING:
    from shoal.store.hashing import Data
    from shoal.store.known import KnownFiles
    from shoal.store.pack import Entry, PackedTree, Progress

COMMIT_TIMEOUT_S = 600.0
REQUEST_S = 1.0
"""Intended duration of one request in seconds. Short, so that a broken connection loses little and the progress bar moves."""
SMALLEST, LARGEST = 1 << 20, 24 << 20
"""Smallest and largest size of one request in bytes."""
MOST_CHUNKS = 512
MOST_UNASKED = 4
"""Largest number of batches sent without asking the server first, after several answers in a row that everything was
missing."""
THREADS = 3


@dataclass(frozen=True, slots=True)
class Sent:
    """Result of an upload."""

    packed: PackedTree
    sent: int
    """Bytes sent, before compression."""


def send_tree(
    store: Store,
    tree: PackedTree | Sequence[Entry],
    commit: Callable[[PackedTree], list[str]],
    progress: Progress | None = None,
    known: KnownFiles | None = None,
) -> Sent:
    """Upload the chunks of a tree that the server does not have, then commit it.

    tree      a packed tree, or entries, which are packed and sent in one pass over their files
    commit    returns the chunks that are still missing: garbage collection may remove chunks between the server's answer and
              the commit
    progress  called with bytes the server has; may raise to stop everything
    known     files that need not be read, except for chunks the server does not have
    """
    from shoal.store.commit import commit_until_complete
    from shoal.store.pack import PackedTree
    from shoal.store.transfer import upload

    if isinstance(tree, PackedTree):
        packed, sent = tree, upload(tree, store, progress=progress)
    else:
        packed, sent = _pack_and_send(list(tree), store, progress or (lambda _: None), known)
    again: list[int] = []
    commit_until_complete(
        lambda: commit(packed), lambda _: again.append(upload(packed, store)), lambda missing: missing
    )
    return Sent(packed, sent + sum(again))


def _pack_and_send(
    entries: list[Entry], store: Store, progress: Progress, known: KnownFiles | None
) -> tuple[PackedTree, int]:
    from shoal.store.pack import pack_entries

    def subtract(num_bytes: int) -> None:
        if num_bytes < 0:  # a file changed while it was read and is read again
            progress(num_bytes)

    with Sender(store, progress) as sender:
        packed = pack_entries(entries, progress=subtract, sink=sender.add, abort=sender.abort, known=known)
        _send_unread(packed, store, sender, progress)
        sender.finish()
    return packed, sender.sent


def _send_unread(packed: PackedTree, store: Store, sender: Sender, progress: Progress) -> None:
    """Send the missing chunks of `known` files, which were not read while packing."""
    from shoal.store.transfer import find_missing

    unread = [f for f in packed.manifest.files if f.path in packed.unread]
    sizes = {chunk.hash: chunk.size for file in unread for chunk in file.chunks}
    missing = find_missing(store, sizes)
    progress(sum(f.size for f in unread) - sum(sizes[name] for name in missing))
    for name in missing:
        sender.add([(name, memoryview(packed.read(name)))])


class Sender:
    """Collects chunks into requests and sends those the server does not have; the size of requests follows the network's speed.

    Why this is safe: `add` may be called by any thread, and blocks while the network is slower than its callers: `_room` limits
    the number of requests that wait or run. `_lock` protects the batch, the set of seen hashes and the counters; no request is
    made while it is held. The first error of any thread is kept in `_error` and raised in all callers. A crash loses nothing:
    the server stores chunks by hash, so sending one again is harmless.
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
        self._all_missing = self._unasked = 0
        """Number of answers in a row that everything was missing, and number of batches that may now be sent without asking."""
        self._error: BaseException | None = None

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()
        self._pool.shutdown(cancel_futures=True)

    def abort(self) -> None:
        """Make all blocked and later calls raise."""
        self._error = self._error or InterruptedError("The push was cancelled.")

    def add(self, chunks: Sequence[tuple[str, memoryview]]) -> None:
        """Add chunks, from any thread. Their bytes are kept in memory until they are sent."""
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
        """Send the rest and wait until everything is sent."""
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
                sent = with_retries(lambda: self._send_missing(batch), before_retry=self._begin_again)
                with self._lock:
                    self.sent += sent
                self._progress(sum(len(data) for _, data in batch))
        except BaseException as error:
            self._error = self._error or error
        finally:
            self._room.release()

    def _send_missing(self, batch: list[tuple[str, Data]]) -> int:
        todo = self._find_missing(batch)
        size = sum(len(data) for _, data in todo)
        start = self._clock()
        if todo:
            self._store.send(todo)
        # Chunks the server has cost only the question; large batches need fewer questions.
        fitting = size / max(self._clock() - start, 1e-3) * REQUEST_S if size else LARGEST
        with self._lock:
            self._target = round(min(max((self._target + fitting) / 2, SMALLEST), LARGEST))
        return size

    def _find_missing(self, batch: list[tuple[str, Data]]) -> list[tuple[str, Data]]:
        with self._lock:
            if self._unasked:
                self._unasked -= 1
                return batch
        missing = self._store.missing([name for name, _ in batch])
        with self._lock:
            self._all_missing = self._all_missing + 1 if len(missing) == len(batch) else 0
            self._unasked = min(max(self._all_missing - 1, 0), MOST_UNASKED)
        return [(name, data) for name, data in batch if name in missing]

    def _begin_again(self) -> None:
        """Forget the guess that everything is missing: parts of the failed request may have arrived."""
        self._check()
        with self._lock:
            self._all_missing = self._unasked = 0
