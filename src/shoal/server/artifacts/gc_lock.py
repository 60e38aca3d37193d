"""Lock between commits of artifacts and garbage collection: many commits at the same time, or one collection.

Why a collection never removes a manifest that is being committed:
- A commit puts a manifest into the store first and writes the row that refers to it second. Between the two the manifest looks
  unused. Commits hold `open()` over both steps; the collection holds `closed()` from reading the rows until it has deleted.
- `closed()` first stops new commits (`_closed`), then waits for those inside (`_inside`), so it cannot be starved by them.
- The lock is in memory and covers one server process; only one process may use a data directory. A crash between the two
  steps leaves a manifest without a row, which the next collection removes.
- Chunks do not need this lock: `put_manifest` raises if a chunk is gone, and `store/gc.py` explains why the two cannot race.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class GcLock:
    """Shared lock for commits (`open`), exclusive for garbage collection (`closed`)."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hold the shared lock: from putting a manifest into the store until the row that refers to it is durable."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Hold the exclusive lock: no commit is between manifest and row, and new ones wait. Keep it short."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._closed = True
            self._changed.wait_for(lambda: self._inside == 0)
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()
