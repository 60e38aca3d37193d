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

from shoal.store.stamp import Stamp

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
_SAVE_AT = 1000
"""Files learnt of that are written together: a push that is given up need not read them again."""

T = TypeVar("T")


class OnDisk(Protocol):
    @property
    def disk(self) -> str | Path: ...


E = TypeVar("E", bound=OnDisk)


class KnownFiles:
    """For several threads and processes. Errors of the cache are logged and otherwise mean "not known"."""

    def __init__(self, path: Path):
        self._path = path
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._new: list[tuple[str | Path, Stamp, Chunks]] = []

    def look(self, files: Iterable[tuple[E, Stamp | None]]) -> list[tuple[E, Chunks]]:
        """Of files as they are now, those that are as they were when they were hashed, with their chunks."""

        def ask(db: sqlite3.Connection) -> list[tuple[E, Chunks]]:
            found: list[tuple[E, Chunks]] = []
            if db.execute("select 1 from file limit 1").fetchone() is None:
                return found
            wanted = {_key(file.disk): (file, _text(stamp)) for file, stamp in files if stamp}
            keys = list(wanted)
            for at in range(0, len(keys), _ASK):
                part = keys[at : at + _ASK]
                for path, stamp, packed in db.execute(_FIND.replace("?", ",".join("?" * len(part))), part):
                    file, now = wanted[path]
                    if stamp == now and packed:
                        found.append((file, [(name.hex(), size) for name, size in _CHUNK.iter_unpack(packed)]))
            return found

        return self._try(ask) or []

    def learn(self, path: str | Path, stamp: Stamp, chunks: Chunks) -> None:
        """The stamp was the same before and after the file was read."""
        if time.time_ns() - max(stamp.mtime_ns, stamp.ctime_ns) >= _RACY_NS:
            self._new.append((path, stamp, chunks))
            if len(self._new) >= _SAVE_AT:
                self.save()

    def save(self) -> None:
        """Write what was learnt, and forget what was not seen for three months."""
        with self._lock:
            learnt, self._new = self._new, []
        if not learnt:
            return
        now = int(time.time())
        rows = ((_key(path), _text(stamp), _pack(chunks), now) for path, stamp, chunks in learnt)

        def write(db: sqlite3.Connection) -> None:
            with db:
                db.executemany("insert or replace into file values (?, ?, ?, ?)", rows)
                db.execute("delete from file where used < ?", (now - _FORGET_S,))

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


def _key(path: str | Path) -> bytes:
    name = os.fspath(path)
    # Strings, because a Path object costs more than the question.
    return os.fsencode(name if name.startswith("/") else os.path.join(os.getcwd(), name))  # noqa: PTH109, PTH118


def _text(stamp: Stamp) -> str:
    return f"{_RULES}:{stamp.size}:{stamp.mtime_ns}:{stamp.ctime_ns}:{stamp.dev}:{stamp.ino}"


def _pack(chunks: Chunks) -> bytes:
    return b"".join([_CHUNK.pack(bytes.fromhex(name), size) for name, size in chunks])
