"""What the audit log holds (T25): what no route of the matrix does leaves one entry too."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import text

from shoal.core.audit import AuditAction
from shoal.core.errors import NotAllowedNow, NotSignedIn
from shoal.core.people import PasswordChange, Role, SecretSet, WorkspaceInvite
from shoal.core.pool import JoinCommandRequest, PoolAdd
from shoal.core.schema import utcnow
from shoal.core.settings import Layout
from shoal.server.audit import check, service, settings_log
from shoal.server.audit.record import record_action
from shoal.server.backup import restore as restores
from shoal.server.backup.create import create
from shoal.server.backup.place import Place
from shoal.server.jobs import attach
from shoal.server.jobs import service as jobs
from shoal.server.leases.clock import LeaseClock
from shoal.server.models.jobs import Job
from shoal.server.models.leases import Lease
from shoal.server.people import admin, secrets, sign_in
from shoal.server.people.accounts import ensure_owner
from shoal.server.people.guards import Failures
from shoal.server.pool import join as pool_join
from shoal.server.pool import pool_rows
from shoal.testing.server import AppClient, add_job, add_person, make_context

PASSWORD = "long enough, this"
SECRET = "a-value-that-nobody-may-see"


def entries(ctx):
    return list(reversed(service.list_entries(ctx, limit=1000)))


def actions(ctx):
    return [e.action for e in entries(ctx)]


@pytest.fixture
def dora(ctx):
    """Someone with a password."""
    person = add_person(ctx, "dora@example.org")
    admin.reset_password(ctx, "dora@example.org", SimpleNamespace(password=PASSWORD))
    return person


def test_an_action_that_fails_leaves_no_entry_and_the_chain_goes_on(ctx, anna):
    def work(session):
        record_action(session, AuditAction.JOB_CREATE, "never")
        raise NotAllowedNow("no")

    before = actions(ctx)
    with pytest.raises(NotAllowedNow):
        ctx.db.write(work)
    ctx.db.write(lambda s: record_action(s, AuditAction.JOB_DELETE, "done"))
    assert actions(ctx)[len(before) :] == ["job.delete"]
    assert check.verify(ctx).whole


def test_sign_ins_good_and_bad_are_recorded_without_what_was_typed(ctx, stranger, dora):
    before = len(entries(ctx))
    typed = {"email": SECRET, "password": PASSWORD}
    assert stranger.post("/auth/sign-in", typed).status_code == 401
    assert stranger.post("/auth/sign-in", {"email": "dora@example.org", "password": SECRET}).status_code == 401
    good = stranger.post("/auth/sign-in", {"email": "dora@example.org", "password": PASSWORD})
    unknown, wrong, right = entries(ctx)[before:]
    assert (unknown.action, unknown.result, unknown.object, unknown.actor) == ("session.start", "failed", "", "")
    assert (wrong.action, wrong.result, wrong.object, wrong.actor) == (
        "session.start",
        "failed",
        "dora@example.org",
        "",
    )
    assert (right.action, right.result, right.actor) == ("session.start", "ok", "dora@example.org")
    assert {e.address for e in (unknown, wrong, right)} == {"127.0.0.1"}
    assert right.key_id.startswith("session_")
    assert SECRET not in "".join(e.model_dump_json() for e in entries(ctx))
    signed_in = AppClient(stranger.app, good.json()["token"])
    signed_in.post("/auth/sign-out")
    last = entries(ctx)[-1]
    assert (last.action, last.actor, last.key_id, last.object_id) == (
        "session.end",
        "dora@example.org",
        right.key_id,
        right.key_id,
    )


def test_a_sign_in_to_a_disabled_account_is_recorded_as_failed(ctx, stranger, dora):
    boss = add_person(ctx, "boss@example.org", is_admin=True)
    AppClient(stranger.app, boss.key).request("PATCH", "/admin/users/dora@example.org", json={"disabled": True})
    assert stranger.post("/auth/sign-in", {"email": "dora@example.org", "password": PASSWORD}).status_code == 403
    disabled, failed = entries(ctx)[-2:]
    assert (disabled.action, disabled.actor, disabled.object) == (
        "account.disable",
        "boss@example.org",
        "dora@example.org",
    )
    assert (failed.action, failed.result, failed.detail) == ("session.start", "failed", "disabled account")


def test_accounts_leave_one_entry_for_each_real_change(ctx, app, dora):
    boss = AppClient(app, add_person(ctx, "boss@example.org", is_admin=True).key)
    before = len(entries(ctx))
    for body in (
        {"is_admin": True},
        {"is_admin": True},
        {"disabled": True},
        {"disabled": True},
        {"disabled": False, "is_admin": False},
    ):
        assert boss.request("PATCH", "/admin/users/dora@example.org", json=body).is_success
    found = ["account.promote", "account.disable", "account.demote", "account.enable"]
    assert actions(ctx)[before:] == found


def test_a_changed_password_is_recorded_and_so_is_a_wrong_old_one(ctx, dora):
    wrong = PasswordChange(old_password="not this one", new_password=SECRET)
    with pytest.raises(NotSignedIn):
        sign_in.change_password(ctx, dora.access().principal, wrong, address="")
    sign_in.change_password(
        ctx, dora.access().principal, wrong.model_copy(update={"old_password": PASSWORD}), address=""
    )
    assert [(e.action, e.result) for e in entries(ctx)[-2:]] == [
        ("account.change-password", "failed"),
        ("account.change-password", "ok"),
    ]


def test_an_attack_on_passwords_fills_the_log_only_slowly_and_says_what_it_left_out():
    now = [0.0]
    failures = Failures(most=3, window_s=60, clock=lambda: now[0])
    assert [failures.admit() for _ in range(5)] == [0, 0, 0, None, None]
    now[0] = 61.0
    assert [failures.admit(), failures.admit()] == [2, 0]


def test_the_number_of_failures_that_were_left_out_is_in_the_next_entry(ctx, stranger, dora):
    now = [0.0]
    ctx.guards.failures = Failures(most=1, window_s=60, clock=lambda: now[0])
    before = len(entries(ctx))
    wrong = {"email": "dora@example.org", "password": SECRET}
    for now[0] in (0.0, 1.0, 2.0, 61.0):
        assert stranger.post("/auth/sign-in", wrong).status_code == 401
    found = entries(ctx)[before:]
    assert [e.detail for e in found] == [
        "wrong password",
        "wrong password; 2 more failures before this one were not listed",
    ]


def test_members_who_join_leave_and_are_removed(ctx, app, anna, berta, as_anna, as_berta):
    made = as_anna.post(
        f"/workspaces/{anna.workspace_id}/invitations", WorkspaceInvite(role=Role.MEMBER).model_dump(mode="json")
    )
    before = len(entries(ctx))
    as_berta.post("/auth/invitation", {"code": made.json()["code"]})
    as_anna.request("DELETE", f"/workspaces/{anna.workspace_id}/members/berta@example.org")
    joined, removed = entries(ctx)[before:]
    assert (joined.action, joined.actor, joined.object) == ("member.add", "berta@example.org", "berta@example.org")
    assert "by invitation winv_" in joined.detail and joined.workspace_id == anna.workspace_id
    assert (removed.action, removed.actor, removed.object) == ("member.remove", "anna@example.org", "berta@example.org")
    assert made.json()["code"] not in "".join(e.model_dump_json() for e in entries(ctx))


def test_a_person_who_signs_up_by_invitation_is_the_actor_of_all_of_it(ctx, anna, as_anna, stranger):
    made = as_anna.post(f"/workspaces/{anna.workspace_id}/invitations", {"role": "viewer"}).json()
    before = len(entries(ctx))
    body = {"email": "new@example.org", "password": PASSWORD, "invitation": made["code"]}
    assert stranger.post("/auth/sign-up", body).status_code == 201
    found = entries(ctx)[before:]
    assert [e.action for e in found] == ["account.create", "member.add", "session.start"]
    assert {e.actor for e in found} == {"new@example.org"}


def test_a_browser_that_enters_by_a_link_is_recorded_once(ctx, anna, browser):
    assert [e.actor for e in entries(ctx) if e.action == "session.start"] == ["anna@example.org"]
    browser.get("/enter/a-code-that-was-used")
    failed = entries(ctx)[-1]
    assert (failed.action, failed.result, failed.detail) == ("session.start", "failed", "link used before or expired")


def test_a_change_by_the_console_has_its_session_as_the_key(ctx, anna, browser):
    browser.post(f"/w/{anna.workspace_id}/secrets", {"name": "token", "value": SECRET})
    last = entries(ctx)[-1]
    assert (last.action, last.object, last.actor) == ("secret.set", "token", "anna@example.org")
    assert last.key_id.startswith("session_")
    assert SECRET not in ctx.db.path.read_bytes().decode("latin-1")


def test_stopped_jobs_are_recorded_once_and_resumed(ctx, anna):
    job_id = add_job(ctx, anna)
    before = len(entries(ctx))
    for _ in range(2):
        jobs.stop(ctx, anna.access(), job_id)
    jobs.resume(ctx, anna.access(), job_id)
    assert actions(ctx)[before:] == ["job.stop", "job.resume"]


def test_a_shell_in_a_job_is_recorded(ctx, anna):
    job_id = add_job(ctx, anna)
    with ctx.db.read() as session:
        job = session.get_one(Job, job_id)
    attach.record_attached(ctx, SimpleNamespace(job=job, attempt=SimpleNamespace(number=1)), "anna attached")
    assert actions(ctx)[-1] == "job.attach"


def test_a_lease_that_runs_out_or_is_restarted_is_recorded(ctx, anna, as_anna):
    ctx.gateway.port = 1
    assert as_anna.post(f"/workspaces/{anna.workspace_id}/leases", {"name": "box"}).status_code == 201
    with ctx.db.read() as session:
        lease_id, job_id = session.query(Lease.id, Lease.job_id).one()
    ctx.db.write(lambda s: setattr(s.get_one(Job, job_id), "state", "stopped"))
    as_anna.post(f"/workspaces/{anna.workspace_id}/leases/box/restart")
    ctx.db.write(lambda s: setattr(s.get_one(Lease, lease_id), "expires_at", utcnow()))
    LeaseClock(ctx).handle_due(utcnow())
    restarted, ended = entries(ctx)[-2:]
    assert (restarted.action, restarted.actor) == ("lease.restart", "anna@example.org")
    assert (ended.action, ended.actor, ended.object, ended.address) == ("lease.end", "server", "box", "")


def test_machines_are_recorded_when_they_are_added_and_not_when_one_comes_again(ctx):
    before = len(entries(ctx))
    machine_id = pool_rows.make(ctx, "gpu1", PoolAdd(host="10.0.0.5"), via="ssh")
    pool_rows.make(ctx, "gpu1", PoolAdd(host="10.0.0.5"), via="ssh", again=machine_id)
    assert [(e.action, e.object, e.object_id) for e in entries(ctx)[before:]] == [("machine.add", "gpu1", machine_id)]


def test_a_join_command_is_recorded_without_its_token(ctx, monkeypatch):
    monkeypatch.setattr(pool_join, "_our_address", lambda ctx, ask: "127.0.0.1")
    monkeypatch.setattr(type(ctx.pool), "url_at", lambda self, address: "http://127.0.0.1:1")
    made = pool_join.command(ctx, JoinCommandRequest(name="gpu2"))
    last = entries(ctx)[-1]
    assert (last.action, last.object) == ("machine.join-command", "gpu2")
    token = made.command.split()[0].removeprefix("SHOAL_JOIN=")
    assert token not in last.model_dump_json()


def test_settings_changed_in_the_file_are_named_at_the_next_start_without_values(ctx):
    settings_log.record_at_start(ctx)
    assert entries(ctx) == []
    settings_log.record_at_start(ctx)
    ctx.settings = replace(ctx.settings, smtp_url=f"smtp://user:{SECRET}@mail", max_source_mb=7)
    settings_log.record_at_start(ctx)
    settings_log.record_at_start(ctx)
    [entry] = entries(ctx)
    assert (entry.action, entry.actor, entry.object) == ("settings.change", "server", "max_source_mb, smtp_url")
    assert SECRET not in entry.model_dump_json()


def test_limits_that_an_admin_changed_are_not_recorded_again_at_the_next_start(ctx, app):
    settings_log.record_at_start(ctx)
    boss = AppClient(app, add_person(ctx, "boss@example.org", is_admin=True).key)
    before = len(entries(ctx))
    for _ in range(2):
        assert boss.request("PATCH", "/admin/limits", json={"max_source_mb": 100}).is_success
    settings_log.record_at_start(ctx)
    [entry] = entries(ctx)[before:]
    assert (entry.actor, entry.object, entry.detail) == ("boss@example.org", "max_source_mb", "max_source_mb = 100")


def test_the_owners_key_is_recorded_when_it_is_made_and_revoked(private_ctx):
    ensure_owner(private_ctx)
    assert [(e.action, e.actor) for e in entries(private_ctx)] == [
        ("account.create", "server"),
        ("key.create", "server"),
    ]
    private_ctx.private = False
    ensure_owner(private_ctx)
    assert actions(private_ctx)[2:] == ["key.revoke"]
    ensure_owner(private_ctx)
    assert len(entries(private_ctx)) == 3


def test_backups_hold_the_head_and_are_recorded_and_so_is_a_restore(ctx, anna, tmp_path):
    secrets.set_secret(ctx, anna.access(), SecretSet(name="token", value=SECRET))
    with Place(tmp_path / "place") as place:
        made = create(ctx.layout, ctx.settings, place)
        assert made.audit == f"{entries(ctx)[-2].seq}:{entries(ctx)[-2].hash}"
        last = entries(ctx)[-1]
        assert (last.action, last.object_id) == ("backup.create", made.id) and last.actor.startswith("local:")
        assert check.verify(ctx, made.audit).whole
        assert restores.verify(place).ok
        new = Layout(tmp_path / "new")
        restores.restore(place, new)
    again = make_context(new.root, private=False)
    try:
        restored = entries(again)[-1]
        assert (restored.action, restored.object_id) == ("backup.restore", made.id)
        assert check.verify(again, made.audit).whole
    finally:
        again.db.close()


def test_every_action_is_in_the_guide():
    page = (Path(__file__).parents[3] / "docs/howto/audit.md").read_text(encoding="utf-8")
    assert [action for action in AuditAction if f"`{action.value}`" not in page] == []


def test_the_page_filters_pages_and_verifies(app, ctx, anna, browser):
    from web_browser import Browser

    boss = Browser(app).enter(ctx, add_person(ctx, "boss@example.org", is_admin=True))
    for n in range(120):
        ctx.db.write(lambda s, n=n: record_action(s, AuditAction.JOB_CREATE, f"<b>{n}</b>", f"job_{n}"))
    page = boss.get("/admin/audit")
    assert "&lt;b&gt;119&lt;/b&gt;" in page.text and "<b>119" not in page.text
    shown = boss.get("/admin/audit.json?action=job").json()
    assert len(shown["entries"]) == 100 and shown["verified"] is None
    older = boss.get(shown["older"].replace("/admin/audit?", "/admin/audit.json?")).json()
    assert (
        [e["object"] for e in older["entries"]][-1] == "<b>0</b>"
        and len(older["entries"]) == 20
        and older["older"] is None
    )
    assert boss.get("/admin/audit.json?verify=true").json()["verified"]["whole"]
    assert "The log is intact" in boss.get("/admin/audit?verify=true").text
    assert boss.get("/admin/audit.json?since=2100-01-01").json()["entries"] == []
    assert boss.get("/admin/audit.json?since=soon").status_code == 422
    assert browser.get("/admin/audit").status_code == 403
    ctx.db.write(lambda s: s.execute(text("DROP TRIGGER audit_no_update")) and None)
    ctx.db.write(lambda s: s.execute(text("UPDATE audit SET actor = 'x' WHERE seq = 3")) and None)
    assert "Entry 3: its contents do not match its hash" in boss.get("/admin/audit?verify=true").text
