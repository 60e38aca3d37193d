"""`shoal server doctor` and `check`: each planted problem is named, with what solves it."""

import os
import sqlite3
from datetime import timedelta

import pytest

from shoal.core.instance import claim
from shoal.core.schema import utcnow
from shoal.core.settings import ServerSettings
from shoal.server.backup.create import create
from shoal.server.backup.place import Place
from shoal.server.data_check import check_data
from shoal.server.doctor import examine
from shoal.server.people.secret_key import open_vault
from shoal.testing.server import add_job, add_person

HEALTHY = {"status": "ok", "version": "0.1.0", "health": "ok", "problems": []}


@pytest.fixture
def layout(ctx):
    ctx.layout.close()
    claim(ctx.layout)
    open_vault(ctx.layout, ctx.db)
    add_job(ctx, add_person(ctx, "anna@example.org"), "a-job")
    return ctx.layout


def found(layout, name, health=HEALTHY, **options):
    return [f for f in examine(layout, health, **options) if f.name == name]


def test_a_healthy_server_has_no_error(layout):
    states = {f.name: f.state for f in examine(layout, HEALTHY)}
    assert [name for name, state in states.items() if state == "error"] == []
    assert {
        "settings",
        "server",
        "loops",
        "database",
        "secret key",
        "permissions",
        "disk",
        "store",
        "clock",
        "backups",
        "versions",
    } <= set(states)


def test_every_problem_comes_with_its_fix(layout):
    problems = [
        *found(
            layout,
            "loops",
            {
                **HEALTHY,
                "problems": [{"name": "scheduler", "state": "failing", "since_s": 9.0, "error": "disk I/O error"}],
            },
        ),
        *found(layout, "versions", {**HEALTHY, "version": "0.0.9"}),
        *found(layout, "server", {}),
        *found(layout, "clock", now=lambda: utcnow() - timedelta(days=2)),
    ]
    layout.secret_key.chmod(0o644)
    problems += found(layout, "permissions")
    layout.secret_key.write_text("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
    problems += found(layout, "secret key")
    layout.secret_key.unlink()
    problems += found(layout, "secret key")
    with sqlite3.connect(layout.database) as db:
        db.execute("UPDATE alembic_version SET version_num = '9001'")
    problems += found(layout, "database")
    assert len(problems) == 8
    assert [f.name for f in problems if f.state == "ok" or not f.fix] == []
    texts = " | ".join(f.text for f in problems)
    for part in (
        "scheduler is failing",
        "runs Shoal 0.0.9",
        "not running",
        "before the newest data",
        "read by other users",
        "is missing",
        "9001",
    ):
        assert part in texts


def test_invalid_settings_are_named(layout):
    layout.settings_file.write_text("no_such_setting = 1\n")
    assert found(layout, "settings")[0].state == "error"
    layout.settings_file.write_text("= broken")
    assert "settings.toml" in found(layout, "settings")[0].text


def test_backups_that_stopped_are_an_error(ctx, layout, tmp_path):
    layout.settings_file.write_text(f'backup_to = "{tmp_path / "backups"}"\n')
    assert found(layout, "backups")[0].state == "warning"
    with Place(tmp_path / "backups") as place:
        create(layout, ctx.settings, place)
    assert found(layout, "backups")[0].state == "ok"
    late = found(layout, "backups", now=lambda: utcnow() + timedelta(days=3))[0]
    assert (late.state, "72" in late.text) == ("error", True)


def test_a_place_that_cannot_be_reached_is_named_and_the_rest_still_examined(layout):
    layout.settings_file.write_text('backup_to = "ftp://example.org/x"\n')
    assert found(layout, "backups")[0].state == "error"
    assert found(layout, "versions")


def test_check_reads_everything_and_finds_a_flipped_bit_in_store_and_database(ctx, layout):
    good = check_data(layout, ServerSettings())
    assert good.ok and good.rows > 5 and good.chunks == 1
    for path in layout.store_dir.rglob("*"):
        if path.is_file() and path.name != "index.db" and "manifests" not in path.parts:
            path.chmod(0o600)
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
    assert any("damaged chunk" in p for p in check_data(layout, ServerSettings()).problems)
    ctx.db.close()
    with sqlite3.connect(layout.database) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        page = db.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'uq_users_email' OR tbl_name = 'users' AND type = 'index'"
        ).fetchone()[0]
        size = db.execute("PRAGMA page_size").fetchone()[0]
    db.close()
    with layout.database.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(os.urandom(size))
    broken = check_data(layout, ServerSettings(), store=False)
    assert not broken.ok and broken.problems[0].startswith("the database")
