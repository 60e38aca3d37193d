"""Leases without a machine: what is refused, who may open one, what its time does, what of it is kept."""

import base64
import subprocess
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_public_identity
from sqlalchemy import select, update

from shoal.core.admin import AccountChange
from shoal.core.errors import InvalidSpec, StorageFull
from shoal.core.leases import MAX_TIME, public_key
from shoal.core.people import Role
from shoal.core.schema import utcnow
from shoal.server.jobs import attempts
from shoal.server.leases import lease_rows
from shoal.server.leases.clock import REMINDERS_S, LeaseClock, due_reminder
from shoal.server.leases.keys import Keyring, new_key, public_line
from shoal.server.models.jobs import Job
from shoal.server.models.leases import Lease
from shoal.server.models.users import User
from shoal.server.people import admin
from shoal.server.policy import Principal
from shoal.server.scheduler.decide import Placement
from shoal.server.scheduler.state import QueueMemory
from shoal.testing.server import add_member

LEASES = "/workspaces/default/leases"
DAY, HOUR = 86_400, 3_600


def rent(client, **asked):
    answer = client.post(LEASES, {"name": "box", **asked})
    assert answer.status_code == 201, answer.text
    return answer.json()


def begin(ctx, name="box", *, left_s=HOUR):
    """Set the end of a lease, as if its agent had joined."""
    started = update(Lease).where(Lease.name == name).values(expires_at=utcnow() + timedelta(seconds=left_s))
    ctx.db.write(lambda session: session.execute(started) and None)


def test_a_lease_waits_as_a_job_that_no_list_of_jobs_shows(ctx, as_anna):
    made = rent(as_anna)
    assert made["status"] == "waiting" and made["expires_at"] is None and made["login"].startswith("box-")
    assert as_anna.get("/workspaces/default/jobs").json() == []
    job = as_anna.get(f"/workspaces/default/jobs/{made['job']}").json()
    assert job["status"] == "queued" and job["spec"]["max_restarts"] == 0
    assert [lease["id"] for lease in as_anna.get(LEASES).json()] == [made["id"]]


def test_a_name_is_free_again_when_its_lease_has_ended(as_anna):
    first = rent(as_anna)
    taken = as_anna.post(LEASES, {"name": "box"})
    assert taken.status_code == 409 and "shoal machine release box" in taken.json()["error"]["hint"]
    assert as_anna.delete(f"{LEASES}/box").json()["status"] == "ended"
    assert as_anna.delete(f"{LEASES}/{first['id']}").json()["status"] == "ended"
    assert rent(as_anna)["login"] != first["login"]


def test_a_password_is_made_only_where_the_server_allows_them_and_only_its_hash_is_kept(ctx, as_anna):
    refused = as_anna.post(LEASES, {"password": True})
    assert refused.status_code == 409 and "ssh_passwords" in refused.json()["error"]["hint"]
    object.__setattr__(ctx.settings, "ssh_passwords", True)
    made = rent(as_anna, password=True)
    assert len(made["password"]) == 24 and made["has_password"]
    with ctx.db.read() as session:
        hashed = session.scalars(select(Lease.password_hash)).one()
    assert ctx.guards.passwords.verify(hashed, made["password"])
    assert "password" not in as_anna.get(f"{LEASES}/box").json()
    assert made["password"].encode() not in ctx.db.path.read_bytes()


def test_a_lease_is_extended_up_to_seven_days_and_never_beyond(ctx, as_anna):
    rent(as_anna, time_s=HOUR)
    begin(ctx)
    longer = as_anna.post(f"{LEASES}/box/extend", {"time_s": 6 * DAY}).json()
    assert longer["left_s"] == pytest.approx(6 * DAY + HOUR, abs=60)
    refused = as_anna.post(f"{LEASES}/box/extend", {"time_s": DAY})
    assert refused.status_code == 409 and "7 d" in refused.json()["error"]["message"]
    assert as_anna.post(f"{LEASES}/box/extend", {"time_s": round(MAX_TIME.total_seconds()) + 1}).status_code == 422


def test_only_the_one_who_rented_gets_a_certificate_and_it_opens_nothing_else(ctx, as_anna, anna, as_berta, berta):
    made = rent(as_anna)
    add_member(ctx, anna.workspace_id, berta, Role.OWNER)
    theirs = as_berta.post(f"/workspaces/{anna.workspace_id}/leases/box/certificate", {"public_key": new_key()[1]})
    assert theirs.status_code == 409 and "Only the person who rented" in theirs.json()["error"]["message"]
    begin(ctx, left_s=120)
    line = new_key()[1]
    signed = as_anna.post(f"{LEASES}/box/certificate", {"public_key": line}).json()
    certificate = load_ssh_public_identity(signed["certificate"].encode())
    certificate.verify_cert_signature()
    assert certificate.valid_principals == [made["login"].encode()]
    assert certificate.valid_before <= utcnow().timestamp() + 121, "not beyond the lease"
    assert as_anna.post(f"{LEASES}/box/certificate", {"public_key": "ssh-ed25519 AAAA"}).status_code == 422


def test_what_is_no_public_key_is_refused_by_name():
    for key in ("", "hello", "ssh-ed25519", "ssh-ed25519 ???", "ssh-rsa AAAAC3NzaC1lZDI1NTE5"):
        with pytest.raises(ValueError, match="key"):
            public_key(key)
    good = new_key()[1]
    assert public_key(f"{good} ada@example.org") == good
    dss = base64.b64encode(b"\0\0\0\7ssh-dss").decode()
    with pytest.raises(ValueError, match="ssh-keygen"):
        public_key(f"ssh-dss {dss}")


def test_keys_of_the_gateway_are_made_once_and_for_their_owner_only(tmp_path):
    first, again = Keyring(tmp_path), Keyring(tmp_path)
    assert public_line(first.host) == public_line(again.host) != public_line(first.authority)
    ways = [keys.derived(name)[1] for keys in (first, again) for name in ("att_a.0", "att_a.1")]
    assert ways[:2] == ways[2:] and ways[0] != ways[1], "agents know them after a restart"
    assert (tmp_path / "ssh_host.key").stat().st_mode & 0o077 == 0
    shown = subprocess.run(
        ["ssh-keygen", "-y", "-f", tmp_path / "ssh_host.key"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split()[:2] == public_line(first.host).split()
    with pytest.raises(InvalidSpec):
        first.certify("ssh-ed25519 AAAA", login="x", who="y", until=None)


@pytest.mark.parametrize(
    ("time_s", "left_s", "reminded_s", "due"),
    [
        (2 * DAY, 1.5 * DAY, None, None),
        (2 * DAY, DAY - 1, None, DAY),
        (2 * DAY, DAY - 60, DAY, None),
        (2 * DAY, HOUR - 1, DAY, HOUR),
        (2 * DAY, 599, None, 600),
        (8 * HOUR, 7 * HOUR, None, None),
        (8 * HOUR, HOUR, None, HOUR),
        (300, 200, None, None),
    ],
)
def test_each_reminder_comes_once_and_none_that_held_from_the_start(time_s, left_s, reminded_s, due):
    assert due_reminder(time_s, left_s, reminded_s) == due


def test_the_clock_ends_what_is_over_and_reminds_of_what_soon_will_be(ctx, as_anna):
    over, soon, far = (rent(as_anna, name=name, time_s=2 * DAY) for name in ("over", "soon", "far"))
    for name, left_s in (("over", -1), ("soon", 599), ("far", 2 * DAY)):
        begin(ctx, name, left_s=left_s)
    wait_s = LeaseClock(ctx).handle_due(utcnow())
    assert 0 <= wait_s <= 30
    assert as_anna.get(f"{LEASES}/{over['id']}").json()["status"] == "ended"
    assert as_anna.get(f"/workspaces/default/jobs/{over['job']}").json()["status"] == "stopped"
    with ctx.db.read() as session:
        reminded = dict(session.execute(select(Lease.name, Lease.reminded_s)).all())
    assert reminded == {"over": None, "soon": min(REMINDERS_S), "far": None}
    events = as_anna.get(f"/workspaces/default/jobs/{soon['job']}").json()["events"]
    assert "shoal machine extend soon" in events[-1]["message"]
    assert as_anna.get(f"{LEASES}/{far['id']}").json()["status"] == "waiting"


def test_a_lease_that_is_extended_while_the_clock_works_on_it_stays_and_is_reminded_again(ctx, as_anna, monkeypatch):
    for name, left_s in (("over", 60), ("soon", 599)):
        rent(as_anna, name=name, time_s=2 * DAY)
        begin(ctx, name, left_s=left_s)
    write = ctx.db.write

    def extend_first(work, **options):
        monkeypatch.setattr(ctx.db, "write", write)
        for name in ("over", "soon"):
            assert as_anna.post(f"{LEASES}/{name}/extend", {"time_s": HOUR}).status_code == 200
        return write(work, **options)

    monkeypatch.setattr(ctx.db, "write", extend_first)
    LeaseClock(ctx).handle_due(utcnow() + timedelta(seconds=61))
    with ctx.db.read() as session:
        assert dict(session.execute(select(Lease.name, Lease.ended_at)).all()) == {"over": None, "soon": None}
        assert dict(session.execute(select(Lease.name, Lease.reminded_s)).all()) == {"over": None, "soon": None}


def test_a_lease_that_is_over_or_whose_person_may_not_sign_in_opens_to_nobody(ctx, as_anna, anna):
    made = rent(as_anna)
    assert lease_rows.opening(ctx, made["login"]) is None, "its time has not begun"
    begin(ctx)
    assert lease_rows.opening(ctx, made["login"]).lease_id == made["id"]
    assert lease_rows.opening(ctx, "box") is None
    for disabled_at, is_open in ((utcnow(), False), (None, True)):
        change = update(User).where(User.id == anna.user_id).values(disabled_at=disabled_at)
        ctx.db.write(lambda session, change=change: session.execute(change) and None)
        assert (lease_rows.opening(ctx, made["login"]) is not None) == is_open
    begin(ctx, left_s=-1)
    assert lease_rows.opening(ctx, made["login"]) is None


def test_leases_end_when_their_persons_account_is_disabled_and_only_theirs(ctx, as_anna, as_berta, anna):
    made, other = rent(as_anna), rent(as_berta, name="other")
    begin(ctx)
    admin.change_account(
        ctx,
        Principal("admin", "admin@example.org", True, frozenset(), "none"),
        anna.email,
        AccountChange(disabled=True),
    )
    with ctx.db.read() as session:
        reasons = dict(session.execute(select(Lease.id, Lease.end_reason)).all())
    assert reasons == {made["id"]: "the account of anna@example.org was disabled", other["id"]: None}


def test_a_lease_that_never_ran_is_restarted_where_its_person_wanted_it(as_anna):
    made = rent(as_anna, prefer=["local"])
    as_anna.post(f"/workspaces/default/jobs/{made['job']}/stop")
    assert as_anna.get(f"{LEASES}/box").json()["status"] == "offline"
    assert as_anna.post(f"{LEASES}/box/restart").json()["status"] == "waiting"
    assert as_anna.get(f"/workspaces/default/jobs/{made['job']}").json()["spec"]["prefer"] == ["local"]


def test_leases_are_listed_with_the_machine_each_was_on_last(ctx, as_anna):
    ran, waits = rent(as_anna, name="ran"), rent(as_anna, name="waits")
    with ctx.db.read() as session:
        job_id = session.scalar(select(Lease.job_id).where(Lease.id == ran["id"]))
    for attempt_id, machine in (("att_a", "before"), ("att_b", "since")):
        where = [Placement(machine, (0,))]
        ctx.db.write(lambda s, a=attempt_id, w=where: attempts.create(s, job_id, w, a, b"x") and None)
        ctx.db.write(lambda s: s.execute(update(Job).where(Job.id == job_id).values(state="queued")) and None)
    machines = {lease["id"]: lease["machine"] for lease in as_anna.get(LEASES).json()}
    assert machines == {ran["id"]: "since", waits["id"]: None}


def test_a_lease_that_runs_makes_way_for_nobody(ctx, as_anna):
    made = rent(as_anna)
    with ctx.db.read() as session:
        job_id = session.scalars(select(Job.id)).one()
    ctx.db.write(lambda s: attempts.create(s, job_id, [Placement("local", (0,))], "att_x", b"x") and None)
    with ctx.db.read() as session:
        seen = QueueMemory().read(session, ctx.engine.capacity(), ctx.settings)
    assert [job.keeps for job in seen.running] == [True], made["job"]


def test_a_lease_that_cannot_be_handled_keeps_none_of_the_others_from_ending(ctx, as_anna, monkeypatch):
    """If a reminder cannot be stored, on a full disk for example, other leases still end."""
    for name in ("aa", "bb", "cc"):
        rent(as_anna, name=name)
    begin(ctx, "aa", left_s=-1)
    begin(ctx, "bb", left_s=500)
    begin(ctx, "cc", left_s=-1)
    with ctx.db.read() as session:
        first = session.scalars(select(Lease.id).where(Lease.name == "aa")).one()

    def drop(lease_id):
        if lease_id == first:
            raise ConnectionError("planted")

    def refuse(*_):
        raise StorageFull

    clock = LeaseClock(ctx)
    monkeypatch.setattr(ctx.gateway, "drop", drop)
    monkeypatch.setattr(clock, "_remind", refuse)
    with pytest.raises(ConnectionError, match="planted"):  # so that /health names the loop
        clock.handle_due(utcnow())
    assert {lease["name"]: lease["status"] for lease in as_anna.get(LEASES).json()}["cc"] == "ended"


def test_the_keys_of_a_lease_are_destroyed_once_it_has_ended_and_nothing_of_it_runs(ctx, as_anna):
    made = rent(as_anna)
    begin(ctx)

    def lease():
        with ctx.db.read() as session:
            row = session.get_one(Lease, made["id"])
            return row.host_key, session.get_one(Job, row.job_id).state

    def state(text):
        ctx.db.write(lambda session: session.execute(update(Job).values(state=text)) and None)

    private = ctx.vault.open(lease()[0], bound_to=made["id"])
    key = lease_rows.volume_key(made["id"], private)
    assert len(key) == 64 and key != lease_rows.volume_key("lease_other", private)
    clock = LeaseClock(ctx)
    state("running")
    clock.handle_due(utcnow())
    assert as_anna.delete(f"{LEASES}/box").status_code in (200, 204)
    clock.handle_due(utcnow())
    assert lease()[0], "its agent may still save the files"
    state("stopped")
    clock.handle_due(utcnow())
    assert lease()[0] == b""
