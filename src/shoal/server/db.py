"""The database: many readers, one writer with group commit.

SQLite in WAL mode with synchronous=FULL, so that what was acknowledged survives a power cut. An fsync costs
milliseconds; the writer thread therefore takes everything that waits, runs each piece in its own savepoint and
commits once for all. `write` returns only after that commit. A crash before it loses the whole batch, but no caller was told
that its write succeeded.
"""

from __future__ import annotations

import errno
import functools
import json
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Dialect, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError, IntegrityError, StatementError
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool, StaticPool
from sqlalchemy.util import LRUCache

from shoal.core.background_loops import Problem, describe
from shoal.core.errors import Busy, ShoalError, StorageFailing, StorageFull, Unreachable
from shoal.server import actor, write_patience
from shoal.server.disk_reserve import Reserve

logger = logging.getLogger(__name__)
T = TypeVar("T")
Work = Callable[[Session], Any]
_MAX_BATCH = 256
_MAX_WAITING = 10_000
_IN_PART = 500
_LATE_S = 30.0
_FORGET_S = 60.0
_COMPILED: LRUCache[Any, Any] = LRUCache(1500)
"""Compiled SQL by statement, shared by reader and writer; SQLAlchemy's cache has its own lock."""


ACTOR = "actor"
"""Key of a session's `info`: who caused the write (`actor.Actor`)."""


def in_parts(items: Iterable[T], size: int = _IN_PART) -> Iterator[list[T]]:
    """Yield the items in lists for `column.in_(…)`: a query allows about a thousand values; transactions should be short."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


class _Item(NamedTuple):
    work: Work
    done: Future[Any]
    essential: bool
    actor: actor.Actor


class Database:
    """SQLite database with a pool of readers and one writer thread.

    Why this is safe: after the start only the thread of `_run` uses `writer`, so two writes never overlap. It alone assigns
    `_busy_since` and `_failed`, each as a whole; others only read them. `_entry` is held while something is queued and while
    `_closed` or `distrusted` is set, so nothing is queued behind the end mark and left without an answer. A caller that waited
    too long cancels its piece; the writer marks a piece as running before its first statement, and one that runs can no longer
    be cancelled, so a piece that was given up has no effect. After the commit `distrusted` is read again, because the flush of
    another file may have failed meanwhile. A crash between the commit and the answer leaves a write that is stored but was
    not acknowledged, never the reverse.
    """

    def __init__(self, path: Path, *, synchronous: str = "FULL"):
        """`synchronous`: anything but FULL may lose acknowledged writes in a power cut; for tests only."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = path
        self.writer = _engine(path, "BEGIN IMMEDIATE", synchronous, poolclass=StaticPool)
        self.reader = _engine(path, "BEGIN", synchronous, poolclass=QueuePool, pool_size=8, max_overflow=56)
        self.reserve: Reserve | None = None
        """Space for essential writes on a full disk; set before anything is written."""
        self._queue: queue.Queue[_Item | None] = queue.Queue(maxsize=_MAX_WAITING)
        self._places = threading.BoundedSemaphore(write_patience.MOST_WAITING)
        self._closed = False
        self._entry = threading.Lock()
        """Held while something is queued and while `_closed` is set: nothing is queued behind the end mark."""
        self._busy_since: float | None = None
        self.distrusted: str | None = None
        """Reason why nothing may be acknowledged any more (see `distrust`), or None."""
        self.on_distrust: Callable[[str], None] = lambda reason: None
        self._failed: tuple[float, float, str] | None = None
        """Times of the first and last failed commit since the last good one, and the error; None if the last was good."""
        self._thread = threading.Thread(target=self._run, name="db-writer", daemon=True)
        self._thread.start()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Yield a session with a consistent view of the database. Do no slow work while it is open."""
        with _translated(), Session(self.reader, expire_on_commit=False) as session:
            yield session

    def write(self, work: Callable[[Session], T], *, essential: bool = False) -> T:
        """Run `work` in the writer thread and return its result once it is durable.

        An exception rolls back only this piece. `work` must not do network, file or process work. `essential` is for writes
        that stop, end or delete something, and for the ledger: they succeed even on a full disk, from the reserve.
        """
        patience = write_patience.of_request()
        if patience is None:
            return self._waited(self._enqueue(work, essential))
        if self._is_stuck(patience.limit_s) or not self._places.acquire(blocking=False):
            raise Busy()
        try:
            done = self._enqueue(work, essential)
            futures.wait([done], timeout=patience.limit_s)
            # The writer marks each piece as running before it touches the database, so one that can be cancelled has not begun.
            if done.cancel():
                raise Busy()
            result = self._waited(done)
        finally:
            self._places.release()
        patience.has_written = True
        return result

    def _enqueue(self, work: Callable[[Session], T], essential: bool) -> Future[T]:
        done: Future[T] = Future()
        try:
            with self._entry:
                if self._closed:
                    raise Unreachable("The server is shutting down.")
                if self.distrusted:
                    raise self._distrusted()
                self._queue.put_nowait(_Item(work, done, essential, actor.current()))
        except queue.Full:
            raise Unreachable("The server is overloaded; try again shortly.") from None
        return done

    @staticmethod
    def _waited(done: Future[T]) -> T:
        with _translated():
            return done.result()

    def _is_stuck(self, limit_s: float) -> bool:
        since = self._busy_since
        return since is not None and time.monotonic() - since > limit_s

    def distrust(self, reason: str) -> None:
        """Acknowledge nothing from now on: the disk failed to flush, and the kernel may have dropped what was written.

        May be called from any thread. A batch whose commit ends after this is not acknowledged either. Only a new process,
        which reads what is really on the disk, may accept writes again.
        """
        with self._entry:
            if self.distrusted:
                return
            self.distrusted = reason
        logger.critical("the disk of the database fails, nothing is written any more: %s", reason)
        self.on_distrust(reason)

    def _distrusted(self) -> StorageFailing:
        return StorageFailing(f"The server ends, as its disk fails: {self.distrusted}.", hint="shoal server log")

    def problem(self) -> Problem | None:
        """Return the problem that prevents writing now, or None."""
        now, busy, failed = time.monotonic(), self._busy_since, self._failed
        if self.distrusted:
            return Problem("database", "failing", 0.0, self.distrusted)
        if not self._thread.is_alive():
            return None if self._closed else Problem("database", "dead", 0.0, "its writer has ended")
        if busy is not None and now - busy > _LATE_S:
            return Problem("database", "late", now - busy, "a write waits for the disk or for a lock")
        if failed is None or now - failed[1] > _FORGET_S:
            return None
        return Problem("database", "failing", now - failed[0], failed[2])

    def disk_problem(self) -> Problem | None:
        """Return a problem if the disk is full, else None."""
        if self.reserve is None or not self.reserve.is_full:
            return None
        since = self.reserve.released_at
        text = "only writes that stop, end or delete something are certain to succeed"
        return Problem("disk", "full", 0.0 if since is None else time.monotonic() - since, text)

    def close(self) -> None:
        """Finish the waiting writes, then close. A later `write` raises Unreachable."""
        with self._entry:
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
                try:
                    self._commit_all(batch)
                except BaseException as error:  # nobody would answer the callers if this thread ended
                    logger.exception("the writer failed outside of a commit")
                    for item in batch:
                        if not item.done.done():
                            item.done.set_exception(error)
                self._busy_since = None

    def _commit_all(self, batch: list[_Item]) -> None:
        """Commit a batch.

        On a full disk essential writes use the reserve, and others are refused until there is space for it again.
        """
        if self.distrusted:
            for item in batch:
                _fail(item.done, self._distrusted())
            return
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
            _fail(item.done, error)

    def _refuse(self, batch: list[_Item]) -> None:
        for item in batch:
            if not item.essential:
                _fail(item.done, StorageFull())

    def _commit(self, batch: list[_Item]) -> BaseException | None:
        """Commit a batch and set the results; return the error, without setting any, if the whole batch failed."""
        results: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            with Session(self.writer, expire_on_commit=False) as session, session.begin():
                session.connection()  # waits for the lock here, while callers may still give up their pieces
                for work, done, _, who in batch:
                    if not _begin(done):
                        continue
                    try:
                        session.info[ACTOR] = who
                        with session.begin_nested():
                            value = work(session)
                        results.append((done, value, None))
                    except ShoalError as error:
                        results.append((done, None, error))
                    except DatabaseError as error:
                        if storage_error(error) is not None:
                            raise  # the whole batch is unreliable
                        results.append((done, None, error))
                    except BaseException as error:  # any error belongs to its caller and must not end this thread
                        results.append((done, None, error))
                    session.expunge_all()
        except BaseException as error:
            # The commit itself failed: no caller of this batch may be told that it succeeded.
            now = time.monotonic()
            since, _, said = self._failed or (now, now, "")
            self._failed = (since, now, text := describe(getattr(error, "orig", None) or error))
            if text != said:
                logger.error("commit of %d writes failed: %s", len(batch), text)
            if getattr(getattr(error, "orig", None), "sqlite_errorcode", None) in _FLUSH_FAILED:
                self.distrust(f"fsync of the database failed: {text}")
            return error
        if self.distrusted:
            return self._distrusted()
        if self._failed is not None:
            self._failed = None
            logger.info("commits work again")
        for done, value, failure in results:
            if failure is None:
                done.set_result(value)
            else:
                done.set_exception(failure)
        return None


def _begin(done: Future[Any]) -> bool:
    """Mark a piece as running; return False if its caller has given it up. A piece that is run again is running already."""
    return done.running() or (not done.cancelled() and done.set_running_or_notify_cancel())


def _fail(done: Future[Any], error: BaseException) -> None:
    if _begin(done):
        done.set_exception(error)


def _engine(path: Path, begin: str, synchronous: str, **options: Any) -> Engine:
    engine = create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False, "timeout": 30.0}, **options)
    share_compiled(engine)

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions are begun explicitly, below
        for pragma in ("journal_mode=WAL", f"synchronous={synchronous}", "foreign_keys=ON", "busy_timeout=30000"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    return engine


def share_compiled(engine: Engine) -> None:
    """Make an engine use the shared cache of compiled statements: reader and writer have most of them in common."""
    engine.dialect = _dialect()  # part of a compiled statement's key
    engine.update_execution_options(compiled_cache=_COMPILED)


@functools.cache
def _dialect() -> Dialect:
    engine = create_engine("sqlite://", json_serializer=_as_json)
    engine.connect().close()  # this detects SQLite's version
    engine.dispose()
    return engine.dialect


def _as_json(value: Any) -> str:
    """Return the text of a JSON column; raise UnicodeEncodeError for text with lone surrogates.

    JSON can express them and SQLite would keep them, but no answer can contain them: every later read would fail.
    """
    text = json.dumps(value)
    if "\\ud" in text:  # a surrogate; those of a pair are one valid character
        json.dumps(value, ensure_ascii=False).encode()
    return text


@contextmanager
def _translated() -> Iterator[None]:
    """Translate SQLite's errors about a full, locked or failing disk to Shoal's errors; unwrap those about invalid text."""
    try:
        yield
    except StatementError as error:
        if isinstance(error.orig, UnicodeEncodeError):
            raise error.orig from error
        if (meant := storage_error(error)) is None:
            raise
        raise meant from error


_FLUSH_FAILED = frozenset({sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC})
_SICK = ("readonly", "i/o error", "unable to open", "malformed", "not a database", "corrupt")


def storage_error(error: BaseException) -> ShoalError | None:
    """Return Shoal's error for an error of the disk or the database; None for any other.

    All of them are 5xx and may be retried: the request is not the cause.
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
            return StorageFailing(f"The server's database is not working: {error.orig}.", hint="shoal server log")
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull()
    elif isinstance(error, OSError) and error.errno in _SICK_DISK:
        return StorageFailing(f"The server's disk is not working: {error.strerror}.", hint="shoal server log")
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
