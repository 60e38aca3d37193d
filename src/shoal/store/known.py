"""Cache of hashed files: if size, times and inode are unchanged, the chunks are known without reading the file.

It is a local SQLite file. If it is lost or damaged, files are simply read again.
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

from shoal.store.file_identity import FileIdentity

logger = logging.getLogger(__name__)

Chunks = list[tuple[str, int]]
"""Chunks of a file in order, as (hash, size)."""

_RULES = 2
"""Version of the chunking. Increase it when chunking changes, so that files are cut again."""
_RACY_NS = 2_000_000_000
"""Age below which a file is not remembered, as it may change again within the resolution of its times."""
_FORGET_S = 90 * 24 * 3600
_CHUNK = struct.Struct(">32sI")
_SCHEMA = """
create table if not exists file (path blob primary key, stamp text not null, chunks blob not null, used integer not null)
without rowid
"""

_FIND = "select path, stamp, chunks from file where path in (?)"
_PER_QUERY = 500
_SAVE_AT = 1000
"""New files that are written together. A cancelled push need not read them again."""

T = TypeVar("T")


class OnDisk(Protocol):
    @property
    def disk(self) -> str | Path: ...


E = TypeVar("E", bound=OnDisk)


class KnownFiles:
    """Cache for several threads and processes. Its errors are logged, and the files then count as unknown.

    `_lock` protects the connection. `learn` appends without the lock; an entry that arrives during `save` may be lost, which
    only means that the file is read again one day.
    """

    def __init__(self, path: Path):
        self._path = path
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._new: list[tuple[str | Path, FileIdentity, Chunks]] = []

    def find(self, files: Iterable[tuple[E, FileIdentity | None]]) -> list[tuple[E, Chunks]]:
        """Return the files that are unchanged since they were hashed, with their chunks."""

        def query(db: sqlite3.Connection) -> list[tuple[E, Chunks]]:
            found: list[tuple[E, Chunks]] = []
            if db.execute("select 1 from file limit 1").fetchone() is None:
                return found
            wanted = {_key(file.disk): (file, _text(stamp)) for file, stamp in files if stamp}
            keys = list(wanted)
            for at in range(0, len(keys), _PER_QUERY):
                part = keys[at : at + _PER_QUERY]
                for path, stamp, packed in db.execute(_FIND.replace("?", ",".join("?" * len(part))), part):
                    file, now = wanted[path]
                    if stamp == now and packed:
                        found.append((file, [(name.hex(), size) for name, size in _CHUNK.iter_unpack(packed)]))
            return found

        return self._try(query) or []

    def learn(self, path: str | Path, stamp: FileIdentity, chunks: Chunks) -> None:
        """Remember a file's chunks. `stamp` must be the same before and after the file was read."""
        if time.time_ns() - max(stamp.mtime_ns, stamp.ctime_ns) >= _RACY_NS:
            self._new.append((path, stamp, chunks))
            if len(self._new) >= _SAVE_AT:
                self.save()

    def save(self) -> None:
        """Write new entries to disk, and delete those not written for three months."""
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
                logger.debug("The cache of hashed files %s cannot be used: %s", self._path, error)
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
    # Strings, because a Path object costs more than the query.
    return os.fsencode(name if name.startswith("/") else os.path.join(os.getcwd(), name))  # noqa: PTH109, PTH118


def _text(stamp: FileIdentity) -> str:
    return f"{_RULES}:{stamp.size}:{stamp.mtime_ns}:{stamp.ctime_ns}:{stamp.dev}:{stamp.ino}"


def _pack(chunks: Chunks) -> bytes:
    return b"".join([_CHUNK.pack(bytes.fromhex(name), size) for name, size in chunks])
