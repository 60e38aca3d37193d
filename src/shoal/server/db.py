"""The database: many readers, one writer with group commit.

SQLite in WAL mode with synchronous=FULL, so that what was acknowledged survives a power cut. An fsync costs
milliseconds; the writer thread therefore takes everything that waits, runs each piece in its own savepoint and
commits once for all. `write` returns only after that commit.
"""

from __future__ import annotations

import errno
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Dialect, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError, IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool, StaticPool
from sqlalchemy.util import LRUCache

from shoal.core.errors import ShoalError, StorageFailing, StorageFull, Unreachable
from shoal.core.loops import Problem, describe
from shoal.server.reserve import Reserve

logger = logging.getLogger(__name__)
T = TypeVar("T")
Work = Callable[[Session], Any]
_MAX_BATCH = 256
_MAX_WAITING = 10_000
_IN_PART = 500
_LATE_S = 30.0
_FORGET_S = 60.0
_COMPILED: LRUCache[Any, Any] = LRUCache(1500)
"""SQL by statement, for reader and writer; SQLAlchemy's cache with a lock of its own."""


def in_parts(items: Iterable[T], size: int = _IN_PART) -> Iterator[list[T]]:
    """For `column.in_(…)`: one question to the database bears no more than a thousand values, one transaction should be short."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


class _Item(NamedTuple):
    work: Work
    done: Future[Any]
    essential: bool


class Database:
    def __init__(self, path: Path, *, synchronous: str = "FULL"):
        """Anything less than FULL may lose acknowledged writes with the power: for tests of other things only."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = path
        self.writer = _engine(path, "BEGIN IMMEDIATE", synchronous, poolclass=StaticPool)
        self.reader = _engine(path, "BEGIN", synchronous, poolclass=QueuePool, pool_size=8, max_overflow=56)
        self.reserve: Reserve | None = None
        """Space for essential writes on a full disk; set before anything is written."""
        self._queue: queue.Queue[_Item | None] = queue.Queue(maxsize=_MAX_WAITING)
        self._closed = False
        self._busy_since: float | None = None
        self._failed: tuple[float, float, str] | None = None
        """When the first of the commits failed that have failed since the last good one, when the last did, and how."""
        self._thread = threading.Thread(target=self._run, name="db-writer", daemon=True)
        self._thread.start()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A consistent snapshot. Do no slow work while it is open."""
        with _translated(), Session(self.reader, expire_on_commit=False) as session:
            yield session

    def write(self, work: Callable[[Session], T], *, essential: bool = False) -> T:
        """Run `work` in the writer thread and return its result once it is durable.

        An exception rolls back this piece alone. `work` must not do network, file or process work. `essential` is for what
        stops, ends or deletes something, and for the ledger: it is written even if the disk is full, from the reserve.
        """
        done: Future[T] = Future()
        try:
            self._queue.put_nowait(_Item(work, done, essential))
        except queue.Full:
            raise Unreachable("The server is overloaded; try again shortly.") from None
        with _translated():
            return done.result()

    def problem(self) -> Problem | None:
        """Return what keeps it from writing now, or None."""
        now, busy, failed = time.monotonic(), self._busy_since, self._failed
        if not self._thread.is_alive():
            return None if self._closed else Problem("database", "dead", 0.0, "its writer has ended")
        if busy is not None and now - busy > _LATE_S:
            return Problem("database", "late", now - busy, "a write waits for the disk or for a lock")
        if failed is None or now - failed[1] > _FORGET_S:
            return None
        return Problem("database", "failing", now - failed[0], failed[2])

    def disk_problem(self) -> Problem | None:
        """Return since when the disk has been full, or None."""
        if self.reserve is None or not self.reserve.is_full:
            return None
        since = self.reserve.released_at
        text = "only what stops, ends or deletes something is sure to be written"
        return Problem("disk", "full", 0.0 if since is None else time.monotonic() - since, text)

    def close(self) -> None:
        """Finish what waits, then close. Writes after this never return a result."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        self.writer.dispose()
        self.reader.dispose()

    def _run(self) -> None:
        open_ = True
        while open_:
            batch = []
            item = self._queue.get()
            while True:
                if item is None:
                    open_ = False
                else:
                    batch.append(item)
                if len(batch) >= _MAX_BATCH or not open_:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            if batch:
                self._busy_since = time.monotonic()
                self._commit_all(batch)
                self._busy_since = None

    def _commit_all(self, batch: list[_Item]) -> None:
        """On a full disk: essential writes from the reserve, the others refused until there is room for it again."""
        reserve = self.reserve
        if reserve is not None and not reserve.hold():
            self._refuse(batch)
            batch = [item for item in batch if item.essential]
        if not batch or (error := self._commit(batch)) is None:
            return
        if reserve is not None and isinstance(storage_error(error), StorageFull):
            wanted = [item for item in batch if item.essential]
            if wanted and reserve.release(self.path.with_name(f"{self.path.name}-wal")):
                self._refuse(batch)
                batch, again = wanted, self._commit(wanted)
                if again is None:
                    return
                error = again
        for item in batch:
            item.done.set_exception(error)

    def _refuse(self, batch: list[_Item]) -> None:
        for item in batch:
            if not item.essential:
                item.done.set_exception(StorageFull())

    def _commit(self, batch: list[_Item]) -> BaseException | None:
        """Return the error if nothing of the batch was written; else everybody has their answer."""
        results: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            with Session(self.writer, expire_on_commit=False) as session, session.begin():
                for work, done, _ in batch:
                    try:
                        with session.begin_nested():
                            value = work(session)
                        results.append((done, value, None))
                    except ShoalError as error:
                        results.append((done, None, error))
                    except DatabaseError as error:
                        if storage_error(error) is not None:
                            raise  # nothing of this batch can be relied on
                        results.append((done, None, error))
                    except BaseException as error:  # of whatever kind: it is its caller's, and must not end this thread
                        results.append((done, None, error))
                    session.expunge_all()
        except BaseException as error:
            # The commit itself failed: nobody in this batch may be told it worked.
            now = time.monotonic()
            since, _, said = self._failed or (now, now, "")
            self._failed = (since, now, text := describe(getattr(error, "orig", None) or error))
            if text != said:
                logger.error("commit of %d writes failed: %s", len(batch), text)
            return error
        if self._failed is not None:
            self._failed = None
            logger.info("commits work again")
        for done, value, failure in results:
            if failure is None:
                done.set_result(value)
            else:
                done.set_exception(failure)
        return None


def _engine(path: Path, begin: str, synchronous: str, **options: Any) -> Engine:
    engine = create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False, "timeout": 30.0}, **options)
    share_compiled(engine)

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # we begin transactions ourselves, below
        for pragma in ("journal_mode=WAL", f"synchronous={synchronous}", "foreign_keys=ON", "busy_timeout=30000"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    return engine


def share_compiled(engine: Engine) -> None:
    """Have an engine for SQLite use the statements that others compiled: reader and writer have most of them in common."""
    engine.dialect = _dialect()  # part of a compiled statement's key
    engine.update_execution_options(compiled_cache=_COMPILED)


@functools.cache
def _dialect() -> Dialect:
    engine = create_engine("sqlite://")
    engine.connect().close()  # it learns SQLite's version
    engine.dispose()
    return engine.dialect


@contextmanager
def _translated() -> Iterator[None]:
    """Say what a full, locked or sick disk means instead of showing SQLite's words."""
    try:
        yield
    except DatabaseError as error:
        if (meant := storage_error(error)) is None:
            raise
        raise meant from error


_SICK = ("readonly", "i/o error", "unable to open", "malformed", "not a database", "corrupt")


def storage_error(error: BaseException) -> ShoalError | None:
    """Return the error of the tree for one of the disk's or the database's own, or None if it is neither.

    All of them are 5xx and may be tried again: what was asked for is not at fault.
    """
    if isinstance(error, IntegrityError):
        return None
    if isinstance(error, DatabaseError):
        text = str(error.orig).lower()
        if "disk is full" in text:
            return StorageFull()
        if "locked" in text or "busy" in text:
            return Unreachable("The database is busy; try again shortly.")
        if any(word in text for word in _SICK):
            return StorageFailing(f"The server's database does not work now: {error.orig}.", hint="shoal server log")
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull()
    elif isinstance(error, OSError) and error.errno in _SICK_DISK:
        return StorageFailing(f"The server's disk does not work now: {error.strerror}.", hint="shoal server log")
    return None


_SICK_DISK = frozenset(
    {
        errno.EIO,
        errno.EROFS,
        errno.ESTALE,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EBUSY,
        errno.ENXIO,
        errno.ENODEV,
    }
)
