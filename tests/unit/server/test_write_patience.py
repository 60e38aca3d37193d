"""A locked database: requests that write are refused after a while, having done nothing; reads and /health go on (F6)."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, text

from shoal.core.errors import Busy
from shoal.server import write_patience
from shoal.server.db import Database
from shoal.server.models.users import ApiKey
from shoal.server.write_patience import MOST_WAITING, Patience, WritePatience
from shoal.testing.patience import wait_until
from shoal.testing.server import AppClient, make_app


@pytest.fixture
def db(tmp_path):
    database = Database(tmp_path / "x.db", synchronous="OFF")
    database.write(lambda s: s.execute(text("CREATE TABLE t (n INTEGER PRIMARY KEY)")) and None)
    yield database
    database.close()


@pytest.fixture
def locked():
    """Lock a database as another process would; calling the result a second time releases it."""
    held = []

    def lock(path):
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("BEGIN IMMEDIATE")
        held.append(connection)

        def release():
            connection.rollback()

        return release

    yield lock
    for connection in held:
        connection.close()


def insert(n):
    return lambda session: session.execute(text("INSERT INTO t VALUES (:n)"), {"n": n}) and n


def rows(db):
    with db.read() as session:
        return [n for (n,) in session.execute(text("SELECT n FROM t ORDER BY n"))]


def in_request(work, limit_s=0.05):
    """Run `work` in a thread as a route runs: with the patience of one request."""
    result = []

    def run():
        write_patience._of_request.set(Patience(limit_s))
        try:
            result.append(work())
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert result, "the request still waits for the lock"
    return result[0]


def test_a_request_is_refused_and_its_write_never_happens(db, locked):
    release = locked(db.path)
    assert isinstance(in_request(lambda: db.write(insert(1))), Busy)
    assert isinstance(in_request(lambda: db.write(insert(2))), Busy), "at once now, as the writer is stuck"
    assert rows(db) == []
    release()
    assert db.write(insert(3)) == 3
    assert rows(db) == [3]


def test_a_second_write_of_a_request_waits_because_something_has_happened(db, locked):
    begun = threading.Event()

    def work():
        db.write(insert(1))
        release = locked(db.path)
        threading.Timer(0.3, release).start()
        begun.set()
        return db.write(insert(2))

    assert in_request(work) == 2
    assert begun.is_set() and rows(db) == [1, 2]


def test_a_background_write_waits_for_the_lock(db, locked):
    release = locked(db.path)
    threading.Timer(0.3, release).start()
    assert db.write(insert(1)) == 1


def test_a_batch_that_fails_after_some_were_given_up_leaves_the_writer_alive(db, locked):
    release = locked(db.path)
    assert isinstance(in_request(lambda: db.write(insert(1))), Busy)
    background = ThreadPoolExecutor(1)
    failing = background.submit(db.write, lambda session: session.execute(text("INSERT INTO no_such_table VALUES (1)")))
    release()
    assert failing.exception(30) is not None
    assert db.write(insert(5)) == 5 and rows(db) == [5]
    background.shutdown()


def test_while_sixty_writers_wait_for_a_lock_reads_and_health_answer(ctx, anna, locked):
    app = WritePatience(make_app(ctx), 0.2)
    client, names = AppClient(app, anna.key), [f"k{n}" for n in range(60)]
    release = locked(ctx.db.path)
    with ThreadPoolExecutor(60) as pool:
        writes = [pool.submit(client.post, "/keys", {"name": name, "scopes": ["read"]}) for name in names]
        # All of this happens while the lock is held: before, the writers held every thread until its end.
        assert AppClient(app).get("/health").status_code == 200
        assert client.get("/keys").status_code == 200
        wait_until(lambda: all(w.done() for w in writes), "every writer has an answer while the lock is held")
        answers = [w.result() for w in writes]
        assert {a.status_code for a in answers} == {503}
        assert {a.json()["error"]["code"] for a in answers} == {"busy"} and {
            a.headers["Retry-After"] for a in answers
        } == {"1"}
        release()
    with ctx.db.read() as session:
        assert not set(session.scalars(select(ApiKey.name))) & set(names), "nothing was done"
    # SQLite polls for the lock, so the writer may notice its release a moment later. A refused request is simply sent again.
    later = {"name": "later", "scopes": ["read"]}
    wait_until(lambda: client.post("/keys", later).status_code == 201, "writes work again")
    with ctx.db.read() as session:
        assert session.scalars(select(ApiKey).where(ApiKey.name == "later")).one()


def test_more_writers_than_may_wait_are_refused_at_once(db, locked):
    release = locked(db.path)
    for _ in range(MOST_WAITING):
        db._places.acquire()
    assert isinstance(in_request(lambda: db.write(insert(1)), limit_s=60), Busy)
    for _ in range(MOST_WAITING):
        db._places.release()
    release()
