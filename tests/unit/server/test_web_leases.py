"""The page of rented machines: how each is reached, how strong its sandbox is, what is left when it has ended."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from gitserver import commit, make_repo
from sqlalchemy import select
from web_browser import Browser

from shoal.core.artifacts import FileEntry, Manifest
from shoal.core.gpu_models import short_model
from shoal.core.jobs import CapacityView, DeviceView, MachineView
from shoal.core.leases import LeaseRequest
from shoal.core.people import Role
from shoal.core.schema import utcnow
from shoal.core.snapshots import SnapshotCommit
from shoal.server.leases import service as leases
from shoal.server.leases import snapshots
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.leases import Lease
from shoal.server.models.sources import Source
from shoal.server.policy import AgentIdentity
from shoal.server.web import offers
from shoal.testing.server import add_member, add_node, add_person, make_app

LEASES = "/w/default/leases"


@pytest.fixture
def gateway(ctx, monkeypatch):
    """Pretend that the gateway is open; connections are not tested here."""
    monkeypatch.setattr(ctx.gateway, "demand", lambda: None)
    monkeypatch.setattr(ctx.gateway, "is_installed", lambda: True)
    ctx.gateway.port = 2222


@pytest.fixture
def rented(ctx, anna, gateway):
    """One that runs."""
    lease = leases.rent(ctx, anna.access(), LeaseRequest(name="box"))
    with ctx.db.read() as session:
        job_id = session.get_one(Lease, lease.id).job_id
    add_node(ctx, job_id)
    ctx.db.write(lambda session: setattr(session.get_one(Job, job_id), "state", "running"))
    set_left(ctx, lease.id, timedelta(days=2))
    set_sandbox(ctx, "bubblewrap, S3")
    return lease


def set_left(ctx, lease_id, left):
    ctx.db.write(lambda session: setattr(session.get_one(Lease, lease_id), "expires_at", utcnow() + left))


def set_sandbox(ctx, paths):
    ctx.db.write(lambda session: setattr(session.scalars(select(Node)).one(), "paths", paths))


def test_a_lease_shows_how_strong_its_sandbox_is_and_what_it_lacks(ctx, browser, rented):
    page = browser.get(LEASES).text
    assert "box" in page and ">S3<" in page and "key only" in page
    set_sandbox(ctx, "bubblewrap, S2: no limits of memory and processes (Read-only file system)")
    page = browser.get(LEASES).text
    assert ">S2<" in page and "S2: no limits of memory and processes" in page


def test_time_that_is_nearly_over_is_red(ctx, browser, rented):
    set_left(ctx, rented.id, timedelta(hours=5))
    assert 'class="nowrap bad"' not in browser.get(LEASES).text, "most of a lease of 8 hours is left"
    set_left(ctx, rented.id, timedelta(minutes=50))
    assert 'class="nowrap bad"' in browser.get(LEASES).text


def test_renting_extending_and_releasing_by_the_form(ctx, browser, anna, gateway):
    made = browser.post(LEASES, {"name": "mine", "accels": "1", "time_s": "3600", "ssh_keys": "\n"})
    assert made.status_code == 201 and "mine" in made.text
    [lease] = leases.list_leases(ctx, anna.access())
    assert lease.name == "mine" and not lease.has_password
    assert browser.post(f"{LEASES}/{lease.id}/extend", {"time_s": "3600"}).status_code in (204, 303)
    with ctx.db.read() as session:
        assert session.get_one(Lease, lease.id).time_s == 7200
    browser.post(f"{LEASES}/{lease.id}/release", {})
    assert leases.get(ctx, anna.access(), lease.id).status == "ended"
    assert "1 lease ended within a day" in browser.get(LEASES).text


def test_what_can_be_rented_has_its_price_and_a_model_is_rented_by_its_card(ctx, browser, anna, gateway):
    gpu = {"model": "NVIDIA H100 80GB HBM3", "memory": 80 * 10**9}
    pool = CapacityView(machines=[
        MachineView(name="a", kind="cuda", slots_total=2, slots_free=1, devices=[
            DeviceView(slot=0, label="GPU 0", is_free=False, **gpu), DeviceView(slot=1, label="GPU 1", is_free=True, **gpu)]),
        MachineView(name="b", kind="cuda", slots_total=1, slots_free=1, devices=[
            DeviceView(slot=0, label="GPU 0", is_free=True, **gpu)]),
        MachineView(name="c", kind="cpu", slots_total=8, slots_free=3),
        MachineView(name="d", kind="cpu", slots_total=8, slots_free=8, state="lost"),
    ])  # fmt: skip
    settings = replace(ctx.settings, price_cpu=0.05, price_models="H100=3.50")
    h100, cpu = offers.offers(settings, pool)
    assert (h100.free, h100.total, h100.at_once, h100.machines, h100.price) == (2, 3, 1, 2, 3.5)
    assert (cpu.choice, cpu.free, cpu.total, cpu.price) == ("cpu", 3, 8, 0.05)
    assert offers.requirements(h100.choice) == {"gpu": short_model(gpu["model"])}
    page = browser.get(LEASES).text
    assert 'data-offer="cpu"' in page and "free now" in page
    assert browser.post(LEASES, {"name": "mine", "device": "cpu", "accels": "1"}).status_code == 201
    refused = browser.post(LEASES, {"name": "big", "device": "gpu:H100", "accels": "1"})
    assert refused.status_code in (409, 422) and "H100" in refused.text


def test_a_lease_that_runs_counts_down_and_opens_in_vs_code(ctx, browser, rented, monkeypatch):
    monkeypatch.setattr(ctx.gateway, "is_connected", lambda lease: True)
    page = browser.get(LEASES).text
    assert re.search(r'data-ends="[0-9T:-]+Z"', page)
    assert re.search(r'href="vscode://vscode-remote/ssh-remote\+box-[a-z0-9]+@[a-z0-9.]+:2222/"', page), page


def test_a_bad_key_is_refused_and_nothing_is_rented(ctx, browser, anna, gateway):
    answer = browser.post(LEASES, {"accels": "1", "ssh_keys": "not a key"})
    assert answer.status_code == 422 and "ssh-ed25519" in answer.text
    assert leases.list_leases(ctx, anna.access()) == []


def test_what_a_lease_left_behind_can_be_gone_on_with_or_removed(ctx, browser, anna, rented):
    with ctx.db.read() as session:
        attempt = session.scalars(select(Attempt)).one()
        who = AgentIdentity(attempt.job_id, attempt.id, attempt.number, 0)
    tree = Manifest(files=[FileEntry(path="tree.json", size=0, chunks=[])])
    taken = snapshots.capture(ctx, who, SnapshotCommit(manifest=tree, skipped=["<b>pipe</b> is no file"])).snapshot
    page = browser.get(LEASES).text
    assert f"shoal machine restore {taken.id}" in page and "&lt;b&gt;pipe" in page and "<b>pipe" not in page
    again = leases.rent(ctx, anna.access(), LeaseRequest(name="again", restore="box"))
    with ctx.db.read() as session:
        job_id = session.get_one(Lease, again.id).job_id
        assert {"path": "/snapshot", "name": taken.id, "manifest_id": taken.tree_hash} in session.get_one(
            Job, job_id
        ).inputs
    browser.post(f"{LEASES}/snapshots/{taken.id}/delete", {})
    assert snapshots.list_snapshots(ctx, anna.access()) == []


def test_a_snapshot_is_gone_when_its_days_are_over(ctx, anna, rented):
    with ctx.db.read() as session:
        attempt = session.scalars(select(Attempt)).one()
        who = AgentIdentity(attempt.job_id, attempt.id, attempt.number, 0)
    taken = snapshots.capture(ctx, who, SnapshotCommit(manifest=Manifest(files=[]))).snapshot
    assert timedelta(days=13) < taken.expires_at - utcnow() <= timedelta(days=14)
    ctx.db.write(lambda s: setattr(s.get_one(snapshots.Snapshot, taken.id), "expires_at", utcnow()))
    assert snapshots.list_snapshots(ctx, anna.access()) == []
    snapshots.drop_expired(ctx)
    with ctx.db.read() as session:
        assert session.get(snapshots.Snapshot, taken.id) is None


def test_viewers_look_and_change_nothing(app, ctx, anna, rented):
    viewer = add_person(ctx, "vera@example.org")
    add_member(ctx, anna.workspace_id, viewer, Role.VIEWER)
    seen = Browser(app).enter(ctx, viewer)
    base = f"/w/{anna.workspace_id}/leases"
    page = seen.get(base)
    assert page.status_code == 200 and "Release" not in page.text and "Rent a machine" not in page.text
    assert seen.post(f"{base}/{rented.id}/release", {}).status_code == 403


def test_within_the_last_hour_every_page_says_so_to_the_one_who_rented_with_a_way_to_extend(
    app, ctx, browser, anna, rented
):
    set_left(ctx, rented.id, timedelta(hours=2))
    assert "Extend by 8 h" not in browser.get("/keys").text
    set_left(ctx, rented.id, timedelta(minutes=42, seconds=30))
    for path in ("/", "/keys", "/w/default/jobs"):
        page = browser.get(path).text
        assert "Your lease" in page and "42 min" in page and f"{LEASES}/{rented.id}/extend" in page, path
    [soon] = browser.get("/leases/ending.json").json()["ending"]
    assert soon["name"] == "box" and 2400 < soon["left_s"] < 2600
    other = add_person(ctx, "otto@example.org")
    add_member(ctx, anna.workspace_id, other, Role.OWNER)
    assert "Your lease" not in Browser(app).enter(ctx, other).get("/keys").text
    browser.post(f"{LEASES}/{rented.id}/extend", {"time_s": "28800"})
    assert "Your lease" not in browser.get("/keys").text


def test_a_lease_is_rented_with_a_repository_by_the_form(ctx, anna, gateway, tmp_path):
    browser = Browser(make_app(replace(ctx, private=True))).enter(ctx, anna)  # where a path is a repository, too
    repo = make_repo(tmp_path / "exp")
    commit(repo, {"train.py": "print('hello')"})
    asked = {"name": "coder", "repository_url": str(repo), "repository_revision": "main"}
    made = browser.post(LEASES, asked)
    assert made.status_code == 201, made.text
    with ctx.db.read() as session:
        source = session.get_one(Source, session.scalars(select(Job)).one().spec["source_id"])
    assert source.origin["url"] == str(repo) and source.files == 1
    refused = browser.post(LEASES, {"name": "other", "repository_url": "https://host/x?y=z"})
    assert refused.status_code == 422 and len(leases.list_leases(ctx, anna.access())) == 1
