"""A database of another version: an older one is copied before it is changed, a newer one is refused with the way out."""

import fcntl
import json
import os
import sqlite3

import pytest

from shoal import __version__
from shoal.core.errors import Corrupt, NotFound, Refused
from shoal.core.instance import claim
from shoal.core.settings import Layout, ServerSettings
from shoal.server.backup import snapshot, upgrades
from shoal.server.db import Database
from shoal.server.migrations import HEAD, MADE_BY, upgrade
from shoal.server.people.vault import Vault
from shoal.server.run import open_context
from shoal.testing.cli import run_cli

KEY = "INSERT INTO api_keys (id, user_id, name, secret_hash, hint, scopes, created_at) VALUES ('key_1', 'user_1', 'k', x'00', 'x', '[]', '2026-01-01')"
USER = (
    "INSERT INTO users (id, email, name, is_admin, created_at) VALUES ('user_1', 'a@example.org', 'A', 1, '2026-01-01')"
)


@pytest.fixture
def layout(tmp_path):
    made = Layout(tmp_path / "home")
    made.close()
    claim(made)
    Vault(made.secret_key)
    return made


def database(layout, version, *statements):
    db = Database(layout.database, synchronous="OFF")
    upgrade(db.writer, version)
    db.close()
    with sqlite3.connect(layout.database) as plain:
        for statement in statements:
            plain.execute(statement)
    plain.close()


def test_a_database_of_a_newer_shoal_is_refused_in_one_sentence_with_the_way_out(layout):
    database(layout, "head", "UPDATE alembic_version SET version_num = '9001'",
             f"INSERT INTO server_facts VALUES ('{MADE_BY}', '7.5.0')")  # fmt: skip
    before = layout.database.read_bytes()
    with pytest.raises(Refused, match=r"last opened by Shoal 7\.5\.0 \(tables of version 9001") as refused:
        open_context(layout, ServerSettings(slots=1, warm=False))
    assert (
        "pip install 'shoal-train[server]>=7.5.0'" in refused.value.hint
        and "shoal server downgrade" in refused.value.hint
    )
    assert layout.database.read_bytes() == before


def test_an_older_database_is_copied_before_its_upgrade_and_can_be_put_back(layout):
    database(layout, "0014", USER, KEY)
    context = open_context(layout, ServerSettings(slots=1, warm=False))
    context.db.close()
    copy = layout.server_dir / "before-upgrade" / "shoal-0014.db"
    assert snapshot.version_of(layout.database) == HEAD and snapshot.version_of(copy) == "0014"
    assert copy.stat().st_mode & 0o077 == 0
    assert snapshot.fact(layout.database, MADE_BY) == __version__
    with sqlite3.connect(layout.database) as db:
        db.execute("UPDATE api_keys SET revoked_at = '2026-02-01' WHERE id = 'key_1'")
    db.close()
    restored, aside = upgrades.downgrade(layout)
    assert (restored, snapshot.version_of(layout.database), snapshot.version_of(aside)) == (copy, "0014", HEAD)
    rows = list(snapshot.query(layout.database, "SELECT id, revoked_at IS NOT NULL FROM api_keys WHERE id = 'key_1'"))
    assert rows == [("key_1", 1)], "what was revoked since then stays revoked"
    assert claim(layout).copy_of is not None, "what ran is given up at the next start"


def test_an_upgrade_without_a_start_examines_copies_and_can_be_repeated(layout):
    database(layout, "0014", USER, KEY)
    found = upgrades.upgrade_now(layout)
    copy = layout.server_dir / "before-upgrade" / "shoal-0014.db"
    assert (found.before, found.after, found.copy_before) == ("0014", HEAD, str(copy))
    assert snapshot.version_of(layout.database) == HEAD and snapshot.version_of(copy) == "0014"
    again = upgrades.upgrade_now(layout)
    assert (again.before, again.copy_before, again.rows) == (HEAD, None, found.rows)


def test_an_upgrade_is_refused_beside_a_server_without_a_database_and_for_a_newer_one(layout):
    with pytest.raises(NotFound, match="no database"):
        upgrades.upgrade_now(layout)
    database(layout, "0014")
    with layout.server_lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="running"):
            upgrades.upgrade_now(layout)
    assert snapshot.version_of(layout.database) == "0014"
    with sqlite3.connect(layout.database) as plain:
        plain.execute("UPDATE alembic_version SET version_num = '9001'")
    plain.close()
    with pytest.raises(Refused, match="newer version"):
        upgrades.upgrade_now(layout)


def test_a_damaged_database_is_left_as_it_is(layout):
    database(layout, "0014", USER, KEY)
    with sqlite3.connect(layout.database) as plain:
        (page,) = plain.execute("SELECT rootpage FROM sqlite_master WHERE name = 'api_keys'").fetchone()
        (size,) = plain.execute("PRAGMA page_size").fetchone()
    plain.close()
    with layout.database.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 100)
    before = layout.database.read_bytes()
    with pytest.raises(Corrupt, match="left as it is"):
        upgrades.upgrade_now(layout)
    assert layout.database.read_bytes() == before and not (layout.server_dir / "before-upgrade").exists()


def test_a_step_that_fails_leaves_the_database_as_it_was(layout):
    database(layout, "0014", USER, KEY)

    def fails(text):
        if "now at" in text:
            raise OSError("killed in the middle")

    with pytest.raises(OSError, match="in the middle"):
        upgrades.upgrade_now(layout, fails)
    assert snapshot.version_of(layout.database) == "0014" and not snapshot.integrity_problems(layout.database)
    assert upgrades.upgrade_now(layout).after == HEAD


def test_the_command_upgrades_and_makes_a_backup_first_where_one_is_wanted(layout, tmp_path):
    database(layout, "0014", USER, KEY)

    def shoal(*words):
        done = run_cli(words, cwd=tmp_path, env=os.environ | {"SHOAL_HOME": str(layout.root)})
        assert done.returncode == 0, done.stderr
        return done

    first = shoal("server", "upgrade", "--backup", str(tmp_path / "place")).stderr
    assert f"from version 0014 to {HEAD}" in first and "server downgrade --yes" in first
    listed = json.loads(shoal("server", "backup", "list", str(tmp_path / "place"), "--json").stdout)
    assert [backup["database_version"] for backup in listed] == ["0014"], "the backup is of what was there before"
    assert f"of version {HEAD} already" in shoal("server", "upgrade").stderr


def test_a_current_database_is_not_copied(layout):
    database(layout, "head")
    assert upgrades.copy_before(layout) is None
    assert not (layout.server_dir / "before-upgrade").exists()


def test_only_the_newest_copies_are_kept(layout):
    for number in range(4):
        path = layout.server_dir / "before-upgrade" / f"shoal-000{number}.db"
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (number, number))
    database(layout, "0014")
    upgrades.copy_before(layout)
    kept = sorted(p.name for p in (layout.server_dir / "before-upgrade").iterdir())
    assert kept == ["shoal-0003.db", "shoal-0014.db"]
