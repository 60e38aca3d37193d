"""Backups: what was acknowledged before is in them, a restore is a new instance, and nothing revoked comes back to life (F25, T24)."""

import random
import sqlite3
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from shoal.core.errors import Corrupt, NotAllowedNow, NotFound, Refused, StorageFull
from shoal.core.instance import claim, instance_id
from shoal.core.jobs import JobSpec
from shoal.core.people import KeyCreate, SecretSet
from shoal.core.schema import utcnow
from shoal.core.settings import Layout, ServerSettings
from shoal.server import copied_data
from shoal.server.artifacts import upkeep
from shoal.server.backup.create import create
from shoal.server.backup.place import Place, undisturbed
from shoal.server.backup.restore import restore, verify
from shoal.server.backup.schedule import BackupLoop
from shoal.server.billing.ledger_check import verify as verify_ledger
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.ledger import LedgerEntry, OpenSpan
from shoal.server.models.users import ApiKey, SessionRow
from shoal.server.people import keys, secrets
from shoal.server.people.secret_key import open_vault
from shoal.server.scheduler.loop import Scheduler
from shoal.testing.server import AppClient, add_job, add_key, add_person, add_source, make_app, make_context


@pytest.fixture
def anna(ctx):
    claim(ctx.layout)
    open_vault(ctx.layout, ctx.db)
    return add_person(ctx, "anna@example.org", is_admin=True)


@pytest.fixture
def place(tmp_path):
    with Place(tmp_path / "backups") as opened:
        yield opened


@pytest.fixture
def new_home(tmp_path):
    return Layout(tmp_path / "new")


def backup(ctx, place, **options):
    return create(ctx.layout, ctx.settings, place, **options)


def reopened(layout):
    """The context of the restored directory, as the first start makes it."""
    instance = claim(layout)
    ctx = make_context(layout.root, private=False)
    ctx.instance = instance.id
    if instance.copy_of:
        copied_data.disown(ctx)
    return ctx


def test_a_restored_server_has_everything_that_was_acknowledged_before(ctx, anna, place, new_home):
    job = add_job(ctx, anna, "kept")
    secrets.set_secret(ctx, anna.access(), SecretSet(name="TOKEN", value="very secret"))
    made = backup(ctx, place)
    assert verify(place).problems == []
    found = restore(place, new_home)
    assert (found.id, found.epoch, found.original) == (made.id, 1, instance_id(ctx.layout))
    there = reopened(new_home)
    try:
        there.vault = open_vault(new_home, there.db)
        assert jobs.get(there, anna.access(), job).name == "kept"
        assert secrets.open_secrets(there, anna.workspace_id, {"T": "TOKEN"}) == {"T": "very secret"}
        source = there.store.get_manifest(ctx_source(there, job))
        assert there.store.get(source.files[0].chunks[0].hash) == b"print('hello')\n"
    finally:
        there.db.close()
    assert new_home.secret_key.stat().st_mode & 0o077 == 0
    assert not [p for p in new_home.server_dir.iterdir() if p.name.startswith(".restore")]


def ctx_source(ctx, job_id):
    from shoal.server.models.sources import Source

    with ctx.db.read() as session:
        return session.scalar(select(Source.manifest_id).join(Job, Job.source_id == Source.id).where(Job.id == job_id))


def test_a_backup_made_while_others_write_has_every_write_acknowledged_before_it(ctx, anna, place):
    acknowledged, stop = [], threading.Event()

    def write():
        while not stop.is_set():
            name = f"k{len(acknowledged)}"
            add_key(ctx, anna, name)
            acknowledged.append(name)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            before = list(acknowledged)
            made = backup(ctx, place)
            assert len(acknowledged) >= len(before)
            state = place.store.get_manifest(made.state)
            database = next(f for f in state.files if f.path == "shoal.db")
            path = ctx.layout.root / "copy.db"
            path.write_bytes(b"".join(place.store.get(c.hash) for c in database.chunks))
            with sqlite3.connect(path) as db:
                names = {name for (name,) in db.execute("SELECT name FROM api_keys")}
                assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert set(before) <= names
    finally:
        stop.set()
        writer.join()


def test_a_second_backup_writes_only_what_is_new(ctx, anna, place):
    add_source(ctx, anna, text=b"x = 1\n" * 200_000)
    ctx.db.write(lambda session: session.add_all([big_key(anna, n) for n in range(1500)]))
    first = backup(ctx, place)
    again = backup(ctx, place)
    assert first.added_bytes > 20e6
    assert again.added_bytes < first.added_bytes / 5, "the same sources, and one more entry of the audit log"
    assert [b.id for b in place.backups()] == [again.id, first.id]


def test_a_backup_that_cannot_be_recorded_is_still_a_backup(ctx, anna, place, monkeypatch, caplog):
    """The disk of the server may be full: that is when a backup is needed most."""

    def full(*_, **__):
        raise StorageFull()

    monkeypatch.setattr("shoal.server.backup.create.record_locally", full)
    made = backup(ctx, place)
    assert verify(place, backup_id=made.id).ok
    assert f"backup {made.id} is not in the audit log" in caplog.text


def big_key(anna, number):
    noise = random.Random(number).randbytes(16_000)
    return ApiKey(id=f"key_{number}", user_id=anna.user_id, name=f"n{number}", secret_hash=noise, hint="x",
                  scopes=[], created_at=utcnow(), expires_at=None, last_used_at=None, revoked_at=None)  # fmt: skip


def test_a_key_revoked_after_the_restored_backup_stays_revoked(ctx, anna, place, new_home):
    key = keys.create_key(ctx, anna.access().principal, KeyCreate(name="lost-laptop"))
    old = backup(ctx, place)
    keys.revoke_key(ctx, anna.access().principal, "lost-laptop")
    backup(ctx, place)
    found = restore(place, new_home, backup_id=old.id)
    assert found.revoked == 1
    there = reopened(new_home)
    try:
        app = make_app(there)
        assert AppClient(app, key.key).get("/keys").status_code == 401
        assert AppClient(app, anna.key).get("/keys").status_code == 200, "other keys work"
    finally:
        there.db.close()


def test_a_revocation_reaches_the_place_before_the_next_backup_is_due(ctx, anna, place, new_home):
    ctx.settings = replace(ctx.settings, backup_to=place.url)
    ctx.instance = instance_id(ctx.layout)
    key = keys.create_key(ctx, anna.access().principal, KeyCreate(name="lost-laptop"))
    loop = BackupLoop(ctx)
    assert loop.pass_once() is not None
    keys.revoke_key(ctx, anna.access().principal, "lost-laptop")
    assert loop.pass_once() is None, "the next one is not due"
    restore(place, new_home)
    there = reopened(new_home)
    try:
        with there.db.read() as session:
            assert session.get(ApiKey, key.id).revoked_at is not None
    finally:
        there.db.close()


def test_all_keys_can_be_revoked_and_sessions_always_end(ctx, anna, place, new_home):
    row = SessionRow(
        id="session_1",
        user_id=anna.user_id,
        secret_hash=b"x",
        created_at=utcnow(),
        expires_at=utcnow() + timedelta(days=9),
        program=None,
    )
    ctx.db.write(lambda session: session.add(row))
    backup(ctx, place)
    restore(place, new_home, revoke_keys=True)
    there = reopened(new_home)
    try:
        with there.db.read() as session:
            assert session.scalars(select(SessionRow)).all() == []
            assert all(k.revoked_at for k in session.scalars(select(ApiKey)))
    finally:
        there.db.close()


def test_attempts_are_fenced_and_no_time_is_charged_twice_after_a_restore(ctx, anna, place, new_home):
    spec = JobSpec(name="j", entry=["train.py"], source_id=add_source(ctx, anna))
    job = jobs.submit(ctx, anna.access(), spec).id
    Scheduler(ctx, "http://nowhere").pass_once()

    def heard(session):
        span = session.scalars(select(OpenSpan)).one()
        span.start_ms, span.heard_ms = 1_000, 61_000
        return span.attempt_id

    attempt = ctx.db.write(heard)
    backup(ctx, place)
    restore(place, new_home)
    there = reopened(new_home)
    try:
        with there.db.read() as session:
            assert session.get(Attempt, attempt).fenced
            assert session.scalars(select(OpenSpan)).all() == []
            entries = session.scalars(select(LedgerEntry)).all()
            assert [(e.attempt_id, e.start_ms, e.end_ms) for e in entries] == [(attempt, 1_000, 61_000)]
            token = session.get(Node, (attempt, 0)).token_hash
        assert token and verify_ledger(there, None).whole
        assert jobs.get(there, anna.access(), job).status == "queued"
        copied_data.disown(there)  # a second start changes nothing
        with there.db.read() as session:
            assert len(session.scalars(select(LedgerEntry)).all()) == 1
    finally:
        there.db.close()


def test_verify_names_a_damaged_chunk_a_lost_artifact_and_a_wrong_key(ctx, anna, place):
    add_source(ctx, anna)
    backup(ctx, place)
    for path in (place.store.root / "manifests").rglob("*"):
        if (
            path.is_file()
            and "files/secret.key" not in place.store.get_manifest(path.parent.name + path.name).model_dump_json()
        ):
            path.unlink()
    assert any("missing in the backup" in p for p in verify(place).problems)


def test_verify_fails_for_a_flipped_bit(ctx, anna, place):
    add_source(ctx, anna)
    backup(ctx, place)
    assert verify(place).ok
    largest = max(
        (p for p in place.store.root.rglob("*") if p.is_file() and p.parts[-2] != "backups" and p.name != "index.db"),
        key=lambda p: p.stat().st_size,
    )
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.chmod(0o600)
    largest.write_bytes(data)
    with Place(place.url) as again:
        assert not verify(again).ok


def test_a_damaged_artifact_is_named_and_does_not_prevent_the_backup(ctx, anna, place):
    source = add_source(ctx, anna)
    for folder in ("chunks", "packs"):
        for path in (ctx.layout.store_dir / folder).rglob("*"):
            if path.is_file():
                path.chmod(0o600)
                path.write_bytes(b"\0" * path.stat().st_size)
    made = backup(ctx, place)
    assert len(made.unreadable) == 1 and source
    assert any("is used but not in the backup" in p for p in verify(place).problems)


def test_old_backups_are_removed_with_the_data_only_they_needed(ctx, anna, place):
    job = add_job(ctx, anna, "dropped", text=b"only here\n" * 1000)
    first = backup(ctx, place)
    ctx.db.write(lambda session: session.delete(session.get(Job, job)))
    upkeep.gc(ctx, grace_s=0, dry_run=False)
    second = backup(ctx, place)
    third = backup(ctx, place)
    assert place.prune(first.instance, 2, grace_s=0) == [first.id]
    assert [b.id for b in place.backups()] == [third.id, second.id]
    assert place.artifacts(second) == [] and set(place.store.list_manifests()) == {second.state, third.state}
    assert verify(place).ok
    with pytest.raises(NotFound):
        place.find(first.id)


def test_backups_of_another_server_in_the_same_place_are_left_alone(ctx, anna, place):
    mine = backup(ctx, place)
    place.add(mine.model_copy(update={"id": "bak_" + "0" * 26, "instance": "inst_other"}))
    newer = backup(ctx, place)
    assert place.prune(mine.instance, 1, grace_s=0) == [mine.id]
    assert {b.id for b in place.backups()} == {newer.id, "bak_" + "0" * 26}
    assert verify(place, backup_id="bak_" + "0" * 26).ok


def test_a_backup_and_a_garbage_collection_exclude_each_other(ctx, anna, place):
    with undisturbed(ctx.layout):
        with pytest.raises(NotAllowedNow, match="running"):
            backup(ctx, place)
        with pytest.raises(NotAllowedNow):
            upkeep.gc(ctx, grace_s=0, dry_run=False)
    assert backup(ctx, place).id


def test_a_backup_is_never_restored_over_data(ctx, anna, place):
    backup(ctx, place)
    with pytest.raises(Refused, match="already has a database"):
        restore(place, ctx.layout)


def test_an_interrupted_restore_leaves_no_database_and_can_be_repeated(ctx, anna, place, new_home, monkeypatch):
    add_source(ctx, anna)
    backup(ctx, place)
    monkeypatch.setattr("shoal.server.backup.restore._copy_back", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        restore(place, new_home)
    assert not new_home.database.exists()
    monkeypatch.undo()
    assert restore(place, new_home).artifacts == 1


def test_without_keys_the_restored_server_says_what_is_missing(ctx, anna, place, new_home):
    secrets.set_secret(ctx, anna.access(), SecretSet(name="TOKEN", value="very secret"))
    backup(ctx, place, keys=False)
    assert b"very secret" not in b"".join(p.read_bytes() for p in place.store.root.rglob("*") if p.is_file())
    assert restore(place, new_home).has_keys is False
    there = make_context(new_home.root)
    there.layout.secret_key.unlink()
    try:
        with pytest.raises(Refused, match="is missing"):
            open_vault(new_home, there.db)
    finally:
        there.db.close()


def test_a_backup_of_a_later_format_is_refused_with_the_version_to_install(ctx, anna, place):
    made = backup(ctx, place)
    place.add(made.model_copy(update={"format": 2, "version": "9.1"}))
    with pytest.raises(Refused, match=r"9\.1"):
        place.find(None)


def test_a_torn_description_is_named(place):
    place.store.blobs.put([("backups/bak_x.json", [b"{"])])
    with pytest.raises(Corrupt, match="bak_x"):
        place.backups()


def test_scheduled_backups_are_made_when_due_and_the_newest_are_kept(ctx, anna, place, monkeypatch):
    ctx.settings = ServerSettings(backup_to=place.url, backup_every_h=1, backup_keep=2)
    ctx.instance = instance_id(ctx.layout)
    loop, start = BackupLoop(ctx), utcnow()
    for hour in range(4):
        now = start + timedelta(hours=hour * 1.5)
        for module in ("create", "schedule"):
            monkeypatch.setattr(f"shoal.server.backup.{module}.utcnow", lambda now=now: now)
        assert loop.pass_once() is not None
        assert loop.pass_once() is None, "just made"
    assert len(place.backups()) == 2
    monkeypatch.setattr("shoal.server.backup.schedule.utcnow", lambda: start - timedelta(days=400))
    assert loop.pass_once() is not None, "the clock went back: one is made instead of waiting for a year"
