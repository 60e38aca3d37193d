"""The writer: group commit, one piece's failure does not touch its neighbours, durable before it answers."""

import threading

import pytest
from sqlalchemy import literal, select, text
from sqlalchemy.util import LRUCache

from shoal.core.errors import NameTaken
from shoal.server.db import Database


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
    from sqlalchemy import event

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
