"""A data directory as version 0.1 left it (tables 0015) is upgraded, examined and put back: nothing in it is lost on either way.

It was made by that version's own server: a job with metrics and a checkpoint, a sweep, a dataset, a secret, a kept and a revoked key.
"""

import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from shoal.core.settings import Layout, ServerSettings
from shoal.server.backup import revocations, snapshot, upgrades
from shoal.server.data_check import check_data
from shoal.server.migrations import HEAD
from shoal.server.run import open_context

OLD = Path(__file__).with_name("old_homes") / "tables-0015.tar.xz"


@pytest.fixture
def layout(tmp_path):
    with tarfile.open(OLD) as packed:
        packed.extractall(tmp_path, filter="data")
    made = Layout(tmp_path / "home")
    made.secret_key.chmod(0o600)
    return made


def rows_of(database):
    """Return the rows of each table, without the one that counts versions."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        return {name: sorted(map(repr, db.execute(f'SELECT * FROM "{name}"'))) for name in names}


def test_an_old_directory_is_upgraded_and_put_back_without_losing_a_row(layout):
    before = rows_of(layout.database)
    assert snapshot.version_of(layout.database) == "0015" and not snapshot.integrity_problems(layout.database)
    revoked, ledger = revocations.of_database(layout.database), snapshot.ledger_head(layout.database)
    settings = layout.settings_file.read_text()
    assert "lease_s" in settings, "the name of before"
    found = upgrades.upgrade_now(layout)
    ServerSettings.load(layout).save(layout)  # as `server start --slots 4` does
    assert "lease_s" not in layout.settings_file.read_text()
    assert (found.before, found.after) == ("0015", HEAD)
    after = rows_of(layout.database)
    kept = ("jobs", "attempts", "nodes", "events", "datasets", "secrets", "api_keys", "ledger", "sweeps", "trials")
    assert {name: len(before[name]) for name in kept} == {name: len(after[name]) for name in kept}
    assert snapshot.ledger_head(layout.database) == ledger != ""
    assert check_data(layout, ServerSettings.load(layout)).problems == []
    assert revocations.of_database(layout.database) == revoked != []

    upgrades.downgrade(layout)
    assert layout.settings_file.read_text() == settings
    back = rows_of(layout.database)
    assert {name for name in before if before[name] != back[name]} <= {"sessions"}, "more was changed"


def test_what_it_holds_is_readable_after_the_upgrade(layout):
    context = open_context(layout, ServerSettings.load(layout))
    try:
        with context.db.read() as session:
            rows = {name: list(session.connection().exec_driver_sql(query)) for name, query in {
                "jobs": "SELECT name, state FROM jobs ORDER BY name", "secrets": "SELECT name FROM secrets"}.items()}  # fmt: skip
    finally:
        context.db.close()
    assert ("past", "succeeded") in [tuple(row) for row in rows["jobs"]]
    assert [tuple(row) for row in rows["secrets"]] == [("token",)]


def test_options_of_the_first_start_after_an_upgrade_do_not_take_the_old_settings_away(layout):
    settings = layout.settings_file.read_text()
    upgrades.copy_settings(layout)  # what the server does before it saves options given at its start
    ServerSettings.load(layout, slots=3).save(layout)
    open_context(layout, ServerSettings.load(layout)).db.close()
    upgrades.downgrade(layout)
    assert layout.settings_file.read_text() == settings
