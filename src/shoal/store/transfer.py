"""Transfer of artifacts between this machine and a remote (an HTTP client or a store): parallel, resumable, bounded memory.

Only chunks that the remote reports as missing are sent, so an interrupted push continues where it stopped.

Why it is safe: in a `_Sender`, `_lock` protects `_seen`, `_batch`, `_size` and `sent`. The hasher's threads call `add`; the
semaphore `_room` limits the batches in memory and blocks them while the remote is slower. They wake every 0.1 s to see
`_error`, which is only ever set from None to an error, so the race between two first errors is harmless. `finish` runs
after all calls of `add` have returned. A crash at any time leaves complete chunks without a manifest, which the next push finds
and a garbage collection would delete; nothing is visible before the caller commits the manifest.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from shoal.core.artifacts import Manifest
from shoal.core.errors import ShoalError, TimedOut, Unreachable
from shoal.store.backend import ChunkStore
from shoal.store.batches import in_batches
from shoal.store.blobstore import BlobStore
from shoal.store.deposit import Deposit, Encoded
from shoal.store.hashing import Data
from shoal.store.known import KnownFiles
from shoal.store.local import LocalStore
from shoal.store.manifest import chunk_hashes
from shoal.store.materialize import materialize
from shoal.store.pack import Entry, PackedTree, Progress, pack_entries

TRANSIENT = (Unreachable, TimedOut, ConnectionError, TimeoutError)
"""Errors after which a request is retried: it may succeed, and sending twice is harmless."""

_PER_REQUEST = 10_000
"""Hashes per request to `missing`."""
_BATCH_BYTES = 16 << 20
_BATCH_COUNT = 512
_DISK_BATCH_BYTES = 8 << 20
"""Bytes of a batch for a local store, where a batch is added to a growing file."""
_STRAIGHT_BYTES = 2 << 20
"""Bytes of neighbouring chunks from which they are a batch of their own for a local store."""
_THREADS = 4
_DISK_THREADS = 2
_TRIES = 6
_FIRST_WAIT_S = 0.25

T = TypeVar("T")


class Remote(Protocol):
    """The other side of a transfer. Several threads may use it at the same time."""

    def missing(self, hashes: Iterable[str]) -> set[str]:
        """Return the hashes that are not stored."""
        ...

    def send(self, chunks: Iterable[tuple[str, Data]]) -> int:
        """Store chunks durably. It is called again with the same chunks after a TRANSIENT error."""
        ...

    def fetch(self, name: str) -> bytes:
        """Return the bytes of a chunk."""
        ...


def upload(packed: PackedTree, remote: Remote, *, progress: Progress | None = None, threads: int = _THREADS) -> int:
    """Send the chunks that the remote is missing; return the bytes sent. `progress` also counts bytes already stored."""
    report = progress or (lambda _: None)
    sizes = {c.hash: c.size for f in packed.manifest.files for c in f.chunks}
    missing = find_missing(remote, sizes)
    report(packed.manifest.size - sum(sizes[h] for h in missing))
    batches = _batches([h for h in sizes if h in missing], sizes)

    def send(batch: list[str]) -> int:
        todo = batch

        def once() -> None:
            remote.send((h, packed.read(h)) for h in todo)

        def check_again() -> None:
            nonlocal todo
            still_missing = remote.missing(batch)
            todo = [h for h in batch if h in still_missing]

        with_retries(once, before_retry=check_again)
        total = sum(sizes[h] for h in batch)
        report(total)
        return total

    return sum(in_parallel(send, batches, threads))


def push(
    entries: list[Entry],
    remote: Remote,
    *,
    known: KnownFiles | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
) -> tuple[PackedTree, int]:
    """Pack and send files in one pass, reading each once; return the packed tree and the bytes sent.

    Files that are `known` from an earlier push are not read, unless the remote is missing some of their chunks. The caller
    commits the manifest next. If chunks are missing then, because the remote has collected old ones, call `upload`.
    """
    threads = threads or (_DISK_THREADS if isinstance(remote, LocalStore) else _THREADS)
    with _Sender(remote, threads) as sender:
        packed = pack_entries(entries, progress=progress, sink=sender.add, abort=sender.abort, known=known)
        sender.finish()
    return packed, sender.sent + (upload(packed, remote, threads=threads) if packed.unread else 0)


def download(
    manifest: Manifest,
    remote: Remote,
    dest: Path,
    *,
    merge: bool = False,
    read_only: bool = False,
    progress: Progress | None = None,
    threads: int | None = None,
) -> None:
    """Write the manifest's tree to `dest`, verified and visible in one step (see `materialize`)."""
    local = isinstance(remote, ChunkStore)
    materialize(
        manifest,
        partial(remote.get_many, once=True)
        if isinstance(remote, ChunkStore)
        else lambda name: with_retries(lambda: remote.fetch(name)),
        dest,
        many=local,
        verify=not local,
        merge=merge,
        read_only=read_only,
        progress=progress,
        threads=threads or (_THREADS if local else 2 * _THREADS),
    )


def find_missing(remote: Remote, hashes: Iterable[str]) -> set[str]:
    """Return the hashes that the remote is missing, asked in requests of bounded size."""
    wanted = list(hashes)
    out: set[str] = set()
    for at in range(0, len(wanted), _PER_REQUEST):
        part = wanted[at : at + _PER_REQUEST]
        out |= with_retries(lambda part=part: remote.missing(part))  # type: ignore[misc]
    return out


def with_retries(work: Callable[[], T], *, before_retry: Callable[[], None] | None = None) -> T:
    """Call `work` up to six times over about eight seconds. Errors other than TRANSIENT are raised immediately."""
    for attempt in range(_TRIES):
        try:
            if attempt and before_retry:
                before_retry()
            return work()
        except TRANSIENT:
            if attempt == _TRIES - 1:
                raise
            time.sleep(_FIRST_WAIT_S * 2**attempt * random.uniform(0.5, 1.0))  # noqa: S311  spreads retries, guards nothing
    raise AssertionError


def in_parallel(work: Callable[[list[str]], int], batches: Iterator[list[str]], threads: int) -> Iterator[int]:
    """Yield results as they arrive. The first error (or Ctrl-C) cancels what has not started and is raised."""
    running: set[Future[int]] = set()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="shoal-transfer")
    try:
        for batch in batches:
            if len(running) >= threads + 1:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
            running.add(pool.submit(work, batch))
        yield from (future.result() for future in wait(running).done)
    finally:
        pool.shutdown(cancel_futures=True)


class _Sender:
    """Collects chunks into batches and sends those the remote is missing. Blocks its callers when the remote is slower."""

    def __init__(self, remote: Remote, threads: int):
        self.sent = 0
        self._remote = remote
        self._deposit = remote.deposit() if isinstance(remote, BlobStore) else None
        self._near = self._deposit if isinstance(remote, LocalStore) else None
        self._batch_bytes = _DISK_BATCH_BYTES if self._near else _BATCH_BYTES
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="shoal-send")
        self._room = threading.Semaphore(threads + 1)
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._batch: list[tuple[str, Data]] = []
        self._size = 0
        self._error: BaseException | None = None

    def __enter__(self) -> _Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()
        self._pool.shutdown(cancel_futures=True)
        if self._deposit:
            with suppress(
                ShoalError, OSError
            ):  # lets a later push continue from here; the first error is raised anyway
                self._deposit.flush()

    def abort(self) -> None:
        self._error = self._error or InterruptedError("The push was cancelled.")

    def add(self, chunks: Sequence[tuple[str, memoryview]]) -> None:
        self._check()
        with self._lock:
            new = {name: data for name, data in chunks if name not in self._seen}
            self._seen.update(new)
        if self._near and sum(map(len, new.values())) >= _STRAIGHT_BYTES:
            self._submit(list(new.items()))
            return
        full: list[list[tuple[str, Data]]] = []
        with self._lock:
            for name, data in new.items():
                self._batch.append((name, data))
                self._size += len(data)
                if self._size >= self._batch_bytes or len(self._batch) >= _BATCH_COUNT:
                    full.append(self._batch)
                    self._batch, self._size = [], 0
        for batch in full:
            self._submit(batch)

    def finish(self) -> None:
        if self._batch:
            self._submit(self._batch)
        self._pool.shutdown()
        self._check()
        if self._deposit:
            self._deposit.flush()

    def _submit(self, batch: list[tuple[str, Data]]) -> None:
        send = partial(self._send_once, batch)
        if self._near:
            new = self._near.prepare({name: (None, data) for name, data in batch})
            send = partial(_write, self._near, new, {name: len(data) for name, data in batch})
        while not self._room.acquire(timeout=0.1):
            self._check()
        self._pool.submit(self._send, send).add_done_callback(lambda _: self._room.release())

    def _check(self) -> None:
        if self._error:
            raise self._error

    def _send(self, once: Callable[[], int]) -> None:
        try:
            if self._error is None:
                sent = with_retries(once, before_retry=self._check)
                with self._lock:
                    self.sent += sent
        except BaseException as error:
            self._error = self._error or error

    def _send_once(self, batch: list[tuple[str, Data]]) -> int:
        if self._deposit:
            stored = self._deposit.put({name: (None, data) for name, data in batch})
            return sum(len(data) for name, data in batch if name in stored)
        missing = self._remote.missing([name for name, _ in batch])
        todo = [(name, data) for name, data in batch if name in missing]
        if todo:
            self._remote.send(todo)
        return sum(len(data) for _, data in todo)


def _write(deposit: Deposit, encoded: list[Encoded], sizes: dict[str, int]) -> int:
    return sum(sizes[name] for name in deposit.write(encoded))


def _batches(hashes: list[str], sizes: dict[str, int]) -> Iterator[list[str]]:
    return in_batches(((name, sizes[name]) for name in hashes), max_bytes=_BATCH_BYTES, max_count=_BATCH_COUNT)


__all__ = [
    "TRANSIENT",
    "Progress",
    "Remote",
    "chunk_hashes",
    "download",
    "find_missing",
    "push",
    "upload",
    "with_retries",
]
