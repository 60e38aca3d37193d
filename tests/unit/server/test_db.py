"""The writer: group commit, one piece's failure does not touch its neighbours, durable before it answers."""

import errno
import os
import sqlite3
import threading

import pytest
from sqlalchemy import event, literal, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.util import LRUCache

from shoal.core import durable
from shoal.core.errors import NameTaken, StorageFailing, Unreachable
from shoal.server.db import Database
from shoal.testing.patience import patient, wait_until


@pytest.fixture
def db(tmp_path):
    database = Database(tmp_path / "x.db")
    database.write(lambda s: s.execute(text("CREATE TABLE t (n INTEGER PRIMARY KEY)")) and None)
    yield database
    database.close()


def insert(n):
    return lambda session: session.execute(text("INSERT INTO t VALUES (:n)"), {"n": n}) and n


def rows(db):
    with db.read() as session:
        return [n for (n,) in session.execute(text("SELECT n FROM t ORDER BY n"))]


def test_the_disk_is_synced_on_every_commit(db):
    with db.writer.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_a_statement_is_compiled_once_for_reader_and_writer(tmp_path, monkeypatch):
    compiled = LRUCache(10)
    monkeypatch.setattr("shoal.server.db._COMPILED", compiled)
    database = Database(tmp_path / "x.db")
    for value in (1, 2):
        assert database.write(lambda s, value=value: s.scalar(select(literal(value)))) == value
        with database.read() as session:
            assert session.scalar(select(literal(value))) == value
    database.close()
    assert len(compiled) == 1


def test_a_failing_piece_is_undone_alone(db):
    def fails(session):
        insert(2)(session)
        raise NameTaken("taken")

    assert db.write(insert(1)) == 1
    with pytest.raises(NameTaken, match="taken"):
        db.write(fails)
    assert db.write(insert(3)) == 3
    assert rows(db) == [1, 3]


def test_many_writers_share_commits_and_all_see_their_own_result(db):
    commits = []
    event.listen(db.writer, "commit", lambda _: commits.append(1))
    results = {}
    hold, release = threading.Event(), threading.Event()

    def slow(session):
        hold.set()
        release.wait(10)
        return insert(0)(session)

    def one(n):
        results[n] = db.write(slow if n == 0 else insert(n))

    threads = [threading.Thread(target=one, args=(n,)) for n in range(50)]
    threads[0].start()
    hold.wait(10)
    for thread in threads[1:]:
        thread.start()
    while db._queue.qsize() < 49:
        threading.Event().wait(0.001)
    release.set()
    for thread in threads:
        thread.join()
    assert results == {n: n for n in range(50)}
    assert rows(db) == list(range(50))
    assert len(commits) == 2


def test_what_waits_is_written_before_closing(tmp_path):
    database = Database(tmp_path / "y.db")
    database.write(lambda s: s.execute(text("CREATE TABLE t (n INTEGER PRIMARY KEY)")) and None)
    threads = [threading.Thread(target=database.write, args=(insert(n),)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    database.close()
    again = Database(tmp_path / "y.db")
    assert rows(again) == list(range(20))
    again.close()


def test_a_write_after_closing_is_refused_and_does_not_wait(tmp_path):
    database = Database(tmp_path / "z.db")
    database.close()
    refused = []

    def late():
        try:
            database.write(insert(1))
        except Unreachable as error:
            refused.append(error)

    thread = threading.Thread(target=late, daemon=True)
    thread.start()
    thread.join(patient(5))
    assert refused and "shutting down" in str(refused[0])


def test_writes_while_it_closes_all_end_with_a_result_or_a_refusal(tmp_path):
    database = Database(tmp_path / "z.db")
    database.write(lambda s: s.execute(text("CREATE TABLE t (n INTEGER PRIMARY KEY)")) and None)
    ended, written = [], []

    def keep_writing(first):
        try:
            for n in range(first, first + 10_000):
                written.append(database.write(insert(n)))
        except Unreachable:
            ended.append(first)

    threads = [threading.Thread(target=keep_writing, args=(10_000 * i,), daemon=True) for i in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(written) > 20, "the first writes")
    database.close()
    for thread in threads:
        thread.join(patient(10))
    assert len(ended) == 4
    again = Database(tmp_path / "z.db")
    assert rows(again) == sorted(written)
    again.close()


def test_an_error_outside_of_the_commit_reaches_the_callers_and_the_writer_continues(db):
    class Failing:
        def hold(self):
            raise OSError(errno.EIO, "Input/output error")

    db.reserve = Failing()
    failures = []

    def write():
        try:
            db.write(insert(1))
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(patient(5))
    assert [error.errno for error in failures] == [errno.EIO]
    db.reserve = None
    assert db.write(insert(2)) == 2


def _error_of_sqlite(code):
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    return OperationalError("COMMIT", {}, error)


def test_after_a_failed_flush_nothing_is_acknowledged_any_more(db):
    def fail(_):
        raise _error_of_sqlite(sqlite3.SQLITE_IOERR_FSYNC)

    said = []
    db.on_distrust = said.append
    event.listen(db.writer, "commit", fail)
    with pytest.raises(StorageFailing, match="I/O error"):
        db.write(insert(1))
    event.remove(db.writer, "commit", fail)
    with pytest.raises(StorageFailing, match="fsync of the database failed"):
        db.write(insert(2), essential=True)
    assert len(said) == 1
    assert db.problem().name == "database"
    assert rows(db) == []


def test_an_io_error_that_is_no_failed_flush_passes(db):
    def fail(_):
        raise _error_of_sqlite(sqlite3.SQLITE_IOERR_WRITE)

    event.listen(db.writer, "commit", fail)
    with pytest.raises(StorageFailing):
        db.write(insert(1))
    event.remove(db.writer, "commit", fail)
    assert db.write(insert(2)) == 2


def test_a_commit_during_which_a_flush_of_the_store_fails_is_not_acknowledged(db):
    def distrusted(session):
        db.distrust("fsync failed: Input/output error")
        return insert(1)(session)

    with pytest.raises(StorageFailing, match="Input/output error"):
        db.write(distrusted)


def test_only_flushes_on_the_servers_own_disk_are_watched(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(durable, "_watcher", None)
    durable.watch_flushes(tmp_path, said.append)

    def fail(fd):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    for folder in (tmp_path, "/proc"):
        with pytest.raises(OSError, match="Input/output"):
            durable.sync(folder)
    assert said == ["fsync failed: Input/output error"]
