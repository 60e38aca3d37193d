"""Files hashed before: where size, times and inode are as they were, their chunks are known without reading them again.

A cache of this machine's own making (SQLite): lost or damaged, everything is simply read once more.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

logger = logging.getLogger(__name__)

Chunks = list[tuple[str, int]]
"""(hash, size) of a file's chunks in order."""

_RULES = 2
"""Raised when chunking changes, so that files are cut anew."""
_RACY_NS = 2_000_000_000
"""A file younger than this may change once more without a trace in its times."""
_FORGET_S = 90 * 24 * 3600
_CHUNK = struct.Struct(">32sI")
_SCHEMA = """
create table if not exists file (path blob primary key, stamp text not null, chunks blob not null, used integer not null)
without rowid
"""

_FIND = "select path, stamp, chunks from file where path in (?)"
_ASK = 500

T = TypeVar("T")


class OnDisk(Protocol):
    @property
    def disk(self) -> Path: ...


E = TypeVar("E", bound=OnDisk)


class KnownFiles:
    """For several threads and processes. Errors of the cache are logged and otherwise mean "not known"."""

    def __init__(self, path: Path):
        self._path = path
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._new: list[tuple[bytes, str, bytes, int]] = []

    def look(self, files: Iterable[tuple[E, os.stat_result | None]]) -> list[tuple[E, Chunks]]:
        """Of files and their status now, those that are as they were when they were hashed, with their chunks."""

        def ask(db: sqlite3.Connection) -> list[tuple[E, Chunks]]:
            found: list[tuple[E, Chunks]] = []
            if db.execute("select 1 from file limit 1").fetchone() is None:
                return found
            wanted = {_key(file.disk): (file, _stamp(status)) for file, status in files if status is not None}
            keys = list(wanted)
            for at in range(0, len(keys), _ASK):
                part = keys[at : at + _ASK]
                for path, stamp, packed in db.execute(_FIND.replace("?", ",".join("?" * len(part))), part):
                    file, now = wanted[path]
                    if stamp == now and packed:
                        found.append((file, [(name.hex(), size) for name, size in _CHUNK.iter_unpack(packed)]))
            return found

        return self._try(ask) or []

    def learn(self, path: Path, found: os.stat_result, chunks: Chunks) -> None:
        """`found` was the same before and after the file was read."""
        if time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) < _RACY_NS:
            return
        packed = b"".join(_CHUNK.pack(bytes.fromhex(name), size) for name, size in chunks)
        with self._lock:
            self._new.append((_key(path), _stamp(found), packed, int(time.time())))

    def save(self) -> None:
        """Write what was learnt, and forget what was not seen for three months."""
        with self._lock:
            rows, self._new = self._new, []
        if not rows:
            return

        def write(db: sqlite3.Connection) -> None:
            with db:
                db.executemany("insert or replace into file values (?, ?, ?, ?)", rows)
                db.execute("delete from file where used < ?", (int(time.time()) - _FORGET_S,))

        self._try(write)

    def close(self) -> None:
        self.save()
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _try(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        with self._lock:
            try:
                if self._db is None:
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                    self._db = sqlite3.connect(self._path, timeout=5, check_same_thread=False)
                    self._db.execute("pragma journal_mode = wal")
                    self._db.execute("pragma synchronous = off")
                    self._db.execute(_SCHEMA)
                return work(self._db)
            except (sqlite3.Error, OSError, struct.error) as error:
                logger.debug("The cache of hashed files %s is of no use: %s", self._path, error)
                if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                    self._discard()
                return None

    def _discard(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                Path(f"{self._path}{suffix}").unlink()


def _key(path: Path) -> bytes:
    name = os.fspath(path)
    # Strings, because a Path object costs more than the question.
    return os.fsencode(name if name.startswith("/") else os.path.join(os.getcwd(), name))  # noqa: PTH109, PTH118


def _stamp(found: os.stat_result) -> str:
    return f"{_RULES}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_dev}:{found.st_ino}"
