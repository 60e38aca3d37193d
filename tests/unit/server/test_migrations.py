"""The history of the schema ends at the models, and what is in a database survives it."""

import sqlite3
from contextlib import closing

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from shoal.server.audit.check import verify_session
from shoal.server.db import Database
from shoal.server.migrations import upgrade
from shoal.server.models import Base


@pytest.fixture
def db(tmp_path):
    database = Database(tmp_path / "shoal.db", synchronous="OFF")
    yield database
    database.close()


def test_migrations_lead_to_the_tables_the_models_describe(db):
    upgrade(db.writer)
    with db.writer.connect() as connection:
        difference = compare_metadata(MigrationContext.configure(connection), Base.metadata)
    assert [d for d in difference if d[0] != "modify_type"] == []


def test_migrations_lead_to_the_triggers_the_models_describe(db, tmp_path):
    """Alembic does not compare them."""
    upgrade(db.writer)
    described = Database(tmp_path / "described.db", synchronous="OFF")
    Base.metadata.create_all(described.writer)
    described.close()
    assert triggers(db.path) == triggers(described.path)
    assert {"audit_no_replace", "ledger_no_replace"} <= triggers(db.path).keys()


def triggers(path):
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall())


def test_a_database_without_an_audit_log_gets_an_empty_one_that_is_intact(db):
    upgrade(db.writer, "0018")
    upgrade(db.writer)
    with db.read() as session:
        assert verify_session(session).model_dump(exclude={"head"}) == {
            "entries": 0,
            "whole": True,
            "seq": 0,
            "problems": [],
        }


def test_accounts_and_sessions_of_before_are_kept_and_enabled(db):
    upgrade(db.writer, "0001")
    with sqlite3.connect(db.path) as connection:
        connection.execute("INSERT INTO users VALUES ('user_1', 'a@example.org', 'A', NULL, 1, '2026-01-31 12:00:00')")
        connection.execute("INSERT INTO sessions VALUES ('session_1', 'user_1', x'00', '2026-01-31', '2036-01-31')")
    upgrade(db.writer)
    with sqlite3.connect(db.path) as connection:
        assert connection.execute("SELECT email, disabled_at FROM users").fetchall() == [("a@example.org", None)]
        assert connection.execute("SELECT id, program FROM sessions").fetchall() == [("session_1", None)]
