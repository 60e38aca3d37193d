"""The chain of the audit log (T25): planted tampering is found and named."""

import json
import sqlite3
from contextlib import closing, contextmanager
from datetime import datetime
from types import SimpleNamespace

import pytest
from blake3 import blake3
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from shoal.core.audit import AuditAction
from shoal.core.errors import UsageError
from shoal.core.settings import ServerSettings
from shoal.server import data_check
from shoal.server.audit import check, rules, service
from shoal.server.audit.record import record_action
from shoal.server.db import Database

ENTRIES = 5
HURT = 3
GUARDS = ("audit_no_update", "audit_no_delete", "audit_no_replace")


@pytest.fixture
def written(ctx):
    """A log of five entries, in a database that is closed."""
    for n in range(1, ENTRIES + 1):
        ctx.db.write(lambda s, n=n: record_action(s, AuditAction.JOB_CREATE, f"name-{n}", f"job_{n}"))
    head = check.verify(ctx)
    assert head.whole and head.entries == ENTRIES
    ctx.db.close()
    return SimpleNamespace(path=ctx.db.path, head=f"{head.seq}:{head.head}")


@contextmanager
def unguarded(path, *, triggers=True):
    """Open the database as someone would who can write the file. Restores the triggers, to leave no trace."""
    with closing(sqlite3.connect(path)) as db, db:
        kept = [
            sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'audit'")
        ]
        for name in GUARDS:
            db.execute(f"DROP TRIGGER {name}")
        yield db
        for sql in kept if triggers else ():
            db.execute(sql)


def tamper(path, *statements, triggers=True):
    with unguarded(path, triggers=triggers) as db:
        for statement in statements:
            db.execute(statement)


def verified(path, head=None):
    db = Database(path, synchronous="OFF")
    try:
        return check.verify(SimpleNamespace(db=db), head)
    finally:
        db.close()


def rewritten(path, first):
    """Recompute all hashes from an entry on, as a careful forger would."""
    with unguarded(path) as db:
        db.row_factory = sqlite3.Row
        rows = [dict(row) for row in db.execute("SELECT * FROM audit ORDER BY seq")]
        previous, seq = rules.FIRST, 0
        db.execute("DELETE FROM audit")
        for seq, row in enumerate(rows, 1):
            row |= {"seq": seq, "previous": previous}
            if seq >= first:
                row["hash"] = rules.entry_hash(SimpleNamespace(**row))
            previous = row["hash"]
            db.execute(f"INSERT INTO audit ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values()))
        db.execute("UPDATE audit_head SET seq = ?, hash = ?", (seq, previous))


@pytest.mark.parametrize("column", [*rules.HASHED[2:], "hash", "previous"])
def test_a_changed_entry_is_named(written, column):
    value = 7 if column == "at_ms" else "'changed'"
    tamper(written.path, f"UPDATE audit SET {column} = {value} WHERE seq = {HURT}")
    found = verified(written.path)
    assert not found.whole
    assert found.problems[0].seq == HURT


@pytest.mark.parametrize("seq", [1, HURT, ENTRIES])
def test_a_removed_entry_is_named(written, seq):
    tamper(written.path, f"DELETE FROM audit WHERE seq = {seq}")
    found = verified(written.path)
    assert found.problems[0].seq == seq and "missing" in found.problems[0].what
    assert not found.whole


@pytest.mark.parametrize("seq", [0, ENTRIES + 1])
def test_an_inserted_entry_is_named(written, seq):
    columns = "previous, at_ms, actor, key_id, address, request, action, object, object_id, workspace, workspace_id, result, detail, hash"
    tamper(written.path, f"INSERT INTO audit (seq, {columns}) SELECT {seq}, {columns} FROM audit WHERE seq = {HURT}")
    found = verified(written.path)
    assert not found.whole and seq in [p.seq for p in found.problems]


def test_an_entry_put_between_two_others_is_named(written):
    columns = "previous, at_ms, actor, key_id, address, request, action, object, object_id, workspace, workspace_id, result, detail, hash"
    moved = [f"UPDATE audit SET seq = {n + 1} WHERE seq = {n}" for n in range(ENTRIES, HURT - 1, -1)]
    put = f"INSERT INTO audit (seq, {columns}) SELECT {HURT}, {columns} FROM audit WHERE seq = 1"
    tamper(written.path, *moved, put, f"UPDATE audit_head SET seq = {ENTRIES + 1}")
    found = verified(written.path)
    assert not found.whole and found.problems[0].seq == HURT


def test_a_tail_that_was_cut_off_is_found_by_the_head_row(written):
    tamper(written.path, f"DELETE FROM audit WHERE seq > {HURT}")
    found = verified(written.path)
    assert [p.seq for p in found.problems] == [HURT + 1, ENTRIES]
    assert found.entries == HURT


def test_a_tail_that_was_cut_off_with_its_head_row_is_found_by_a_head_kept_elsewhere(written):
    set_head = f"UPDATE audit_head SET (seq, hash) = (SELECT seq, hash FROM audit WHERE seq = {HURT})"
    tamper(written.path, f"DELETE FROM audit WHERE seq > {HURT}", set_head)
    assert verified(written.path).whole  # nothing inside the database tells
    found = verified(written.path, written.head)
    assert not found.whole and [p.seq for p in found.problems] == [ENTRIES]


def test_a_log_that_was_rewritten_with_all_its_hashes_is_found_by_a_head_kept_elsewhere(written):
    assert verified(written.path, written.head).whole
    tamper(written.path, f"UPDATE audit SET actor = 'nobody' WHERE seq = {HURT}")
    rewritten(written.path, HURT)
    assert verified(written.path).whole
    found = verified(written.path, written.head)
    assert not found.whole and "differs from the one you gave" in found.problems[0].what


def test_a_removed_head_row_and_removed_triggers_are_named(written):
    tamper(written.path, "DELETE FROM audit_head", triggers=False)
    found = [p.what for p in verified(written.path).problems]
    assert len(found) == 4 and "the row that names the last entry was removed" in found
    assert sum("audit_no_" in what for what in found) == 3


def test_a_head_that_is_none_is_refused(ctx):
    for head in ("", "5", "x:" + "0" * 64, "5:abc", "²:" + "0" * 64):
        with pytest.raises(UsageError, match="SEQ:HASH"):
            check.verify(ctx, head)


@pytest.mark.parametrize(
    "statement", ["UPDATE audit SET actor = 'x'", "DELETE FROM audit", "REPLACE INTO audit SELECT * FROM audit"]
)
def test_the_database_refuses_to_change_entries(ctx, statement):
    ctx.db.write(lambda s: record_action(s, AuditAction.JOB_CREATE, "name"))
    with pytest.raises(IntegrityError, match="append-only"):
        ctx.db.write(lambda s: s.execute(text(statement)) and None)
    assert check.verify(ctx).whole


def test_an_export_can_be_verified_by_another_program(ctx, anna):
    """Verify the chain as the guide describes it, from the exported lines alone."""
    ctx.db.write(
        lambda s: record_action(s, AuditAction.JOB_CREATE, "naïve – name", "job_1", workspace=anna.workspace_id)
    )
    fields = [
        "actor",
        "key_id",
        "address",
        "request",
        "action",
        "object",
        "object_id",
        "workspace",
        "workspace_id",
        "result",
        "detail",
    ]
    previous = "0" * 64
    lines = b"".join(service.export(ctx)).splitlines()
    assert len(lines) >= 2
    for entry in map(json.loads, lines):
        at_ms = round(datetime.fromisoformat(entry["at"]).timestamp() * 1000)
        hashed = [entry["seq"], previous, at_ms, *(entry[name] for name in fields)]
        previous = blake3(json.dumps(hashed, separators=(",", ":")).encode()).hexdigest()
        assert entry["hash"] == previous
    assert previous == check.verify(ctx).head


def test_a_check_of_the_data_directory_includes_the_log(ctx, written):
    layout = ctx.layout
    assert data_check.check_data(layout, ServerSettings(), store=False).ok
    tamper(written.path, f"UPDATE audit SET actor = 'x' WHERE seq = {HURT}")
    found = data_check.check_data(layout, ServerSettings(), store=False)
    assert not found.ok and f"audit entry {HURT}: its contents do not match its hash" in found.problems
