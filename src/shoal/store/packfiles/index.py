"""Index of the chunks in packs: an SQLite file next to the packs, shared by processes.

It is only a cache of the packs' heads. If it is lost, stale or damaged, it is built again from them.

Why it is safe: one connection per process, used under `_lock`; WAL mode and SQLite's own locks protect it between processes.
Each change is one transaction, so a crash leaves the state before or after it. `synchronous = normal` may lose the last
rows at a power failure, but not damage the file; `PackSet.refresh` reads the lost ones from the packs.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from shoal.core.errors import StorageFull
from shoal.store.packfiles.packfile import PackedChunk

logger = logging.getLogger(__name__)

_SCHEMA = """
create table if not exists pack (id integer primary key, name text not null unique);
create table if not exists chunk (hash blob not null, pack integer not null, offset integer not null,
    length integer not null, codec integer not null, primary key (hash, pack)) without rowid;
create index if not exists chunk_pack on chunk (pack);
"""
_FIND = (
    "select c.hash, p.name, c.offset, c.length, c.codec from chunk c join pack p on p.id = c.pack where c.hash in (?)"
)
_HELD = "select hash, pack from chunk where hash in (?)"
_PER_QUERY = 500

T = TypeVar("T")


class Place(NamedTuple):
    """Position of a chunk in a pack."""

    pack: str
    offset: int
    length: int
    codec: int


class PackIndex:
    """The index. With `path` None, or without write permission, it is kept in memory."""

    def __init__(self, path: Path | None):
        self._path = path
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self.complete = False
        """True once the packs have been compared with the index since it was opened."""

    def find(self, hashes: Iterable[str]) -> dict[str, list[Place]]:
        """Return all places of each chunk that is in a pack."""
        wanted = [bytes.fromhex(h) for h in hashes]

        def query(db: sqlite3.Connection) -> dict[str, list[Place]]:
            out: dict[str, list[Place]] = {}
            for row in _select(db, _FIND, wanted):
                out.setdefault(row[0].hex(), []).append(Place._make(row[1:]))
            return out

        return self._run(query) if wanted and self._exists() else {}

    def held(self, hashes: Iterable[str]) -> dict[str, set[str]]:
        """Return, for each pack, which of the chunks it contains: three times as fast as `find`, but without positions."""
        wanted = [bytes.fromhex(h) for h in hashes]

        def query(db: sqlite3.Connection) -> dict[str, set[str]]:
            out: dict[int, set[str]] = {}
            for found, pack in _select(db, _HELD, wanted):
                out.setdefault(pack, set()).add(found.hex())
            return {name: out[pack] for pack, name in db.execute("select id, name from pack") if pack in out}

        return self._run(query) if wanted and self._exists() else {}

    def add(self, packs: Mapping[str, Iterable[PackedChunk]]) -> None:
        """Add packs and their chunks."""

        def write(db: sqlite3.Connection) -> None:
            with db:
                for pack, entries in packs.items():
                    db.execute("insert or ignore into pack (name) values (?)", (pack,))
                    (number,) = db.execute("select id from pack where name = ?", (pack,)).fetchone()
                    db.executemany(
                        "insert or replace into chunk values (?, ?, ?, ?, ?)",
                        ((bytes.fromhex(e.hash), number, e.offset, e.length, e.codec) for e in entries),
                    )

        if packs:
            self._run(write)

    def drop(self, packs: Iterable[str]) -> None:
        """Remove packs from the index."""
        names = [(name,) for name in packs]

        def write(db: sqlite3.Connection) -> None:
            with db:
                db.executemany("delete from chunk where pack = (select id from pack where name = ?)", names)
                db.executemany("delete from pack where name = ?", names)

        if names:
            self._run(write)

    def packs(self) -> set[str]:
        if not self._exists():
            return set()
        return self._run(lambda db: {name for (name,) in db.execute("select name from pack")})

    def entries(self, pack: str) -> list[PackedChunk]:
        query = "select hash, offset, length, codec from chunk where pack = (select id from pack where name = ?)"
        return self._run(lambda db: [PackedChunk(h.hex(), *rest) for h, *rest in db.execute(query, (pack,))])

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _exists(self) -> bool:
        """Return False if nothing was ever written, because a read must not create folders."""
        return self._db is not None or self._path is None or self._path.parent.is_dir()

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                return work(self._open())
            except sqlite3.OperationalError as error:
                if "full" in str(error):
                    raise StorageFull(
                        f"The disk holding {self._path} is full. Free some space and try again."
                    ) from error
                raise
            except sqlite3.DatabaseError as error:
                logger.warning("The pack index %s is damaged (%s); building it again.", self._path, error)
                self._discard()
                return work(self._open())

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = self._connect()
        return self._db

    def _connect(self) -> sqlite3.Connection:
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                return _connect(str(self._path))
            except (OSError, sqlite3.OperationalError) as error:
                logger.debug("The pack index %s cannot be used (%s); keeping one in memory.", self._path, error)
        return _connect(":memory:")

    def _discard(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        self.complete = False
        for suffix in ("", "-wal", "-shm") if self._path else ():
            with suppress(OSError):
                Path(f"{self._path}{suffix}").unlink()


def _select(db: sqlite3.Connection, query: str, wanted: Sequence[bytes]) -> Iterator[Any]:
    """Yield the rows of a query with `in (?)`, many values at a time."""
    for at in range(0, len(wanted), _PER_QUERY):
        part = wanted[at : at + _PER_QUERY]
        yield from db.execute(query.replace("?", ",".join("?" * len(part))), part)


def _connect(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=30, check_same_thread=False)
    try:
        # NORMAL may lose the last rows at a power failure; they are read again from the packs.
        db.execute("pragma journal_mode = wal")
        db.execute("pragma synchronous = normal")
        db.executescript(_SCHEMA)
    except BaseException:
        db.close()
        raise
    return db
