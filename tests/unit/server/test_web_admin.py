"""The pages of admins, one's own settings, and a workspace's members and name."""

from datetime import timedelta

import pytest
from test_web_pages import tags_of
from web_browser import Browser

from shoal import __version__
from shoal.core.background_loops import Problem
from shoal.core.people import Role
from shoal.server.models.jobs import Job
from shoal.server.people import admin, sign_in, workspaces
from shoal.server.queue import quotas
from shoal.server.request_origin import program
from shoal.testing.server import add_job, add_member, add_person

HTMX = {"HX-Request": "true"}
XSS = "<img src=x onerror=alert(1)>"


@pytest.fixture
def boss(ctx):
    return add_person(ctx, "boss@example.org", is_admin=True)


@pytest.fixture
def browser(app, ctx, boss):
    return Browser(app).enter(ctx, boss)


@pytest.fixture
def as_anna(app, ctx, anna):
    return Browser(app).enter(ctx, anna)


@pytest.mark.parametrize("path", ["/admin", "/admin/limits", "/admin/quotas", "/admin/audit", "/admin/health"])
def test_admin_pages_are_for_admins(app, browser, as_anna, path):
    page = browser.get(path)
    assert page.status_code == 200 and 'href="/admin" aria-current="page"' in page.text
    assert not [a for _, a in tags_of(page.text) if any(n.startswith("on") or n == "style" for n in a)]
    assert browser.get(f"{path}.json").json()
    assert as_anna.get(path).status_code == 403
    assert 'href="/admin"' not in as_anna.get("/settings").text
    assert Browser(app).get(path).headers["location"].startswith("/sign-in?next=%2Fadmin")


@pytest.mark.parametrize("path", ["people", "people/x", "people/x/password", "limits", "quotas/x"])
def test_only_an_admin_on_our_own_page_changes_anything(browser, as_anna, path):
    assert as_anna.post(f"/admin/{path}", {}).status_code == 403
    assert browser.post(f"/admin/{path}", {}, origin="https://evil.example").status_code == 403


def test_people_are_added_made_admins_and_disabled(browser, ctx, anna):
    form = {"email": "new@example.org", "name": XSS, "password": "long enough, this"}
    assert browser.post("/admin/people", form, headers=HTMX).status_code == 204
    listed = browser.get("/admin").text
    assert "new@example.org" in listed and XSS not in listed and "&lt;img" in listed
    short = browser.post("/admin/people", form | {"password": "secret"}, headers=HTMX)
    assert short.status_code == 422 and "secret" not in short.text.replace("password", "")
    path = f"/admin/people/{anna.user_id}"
    assert "an admin now" in browser.post(path, {"is_admin": "true"}, headers=HTMX).headers["hx-trigger"]
    assert "disabled" in browser.post(path, {"disabled": "true"}, headers=HTMX).headers["hx-trigger"]
    found = next(a for a in admin.list_accounts(ctx) if a.id == anna.user_id)
    assert found.is_admin and found.disabled_at
    assert browser.post(path, {"disabled": "false"}).headers["location"] == "/admin"
    assert browser.post(path, {"is_admin": "perhaps"}, headers=HTMX).status_code == 422
    renewed = browser.post("/admin/people/new@example.org/password", {"password": "another long one"}, headers=HTMX)
    assert renewed.status_code == 204


def test_limits_are_changed_by_their_form(browser, ctx):
    shown = browser.get("/admin/limits").text
    assert 'name="max_source_mb"' in shown and 'value="512"' in shown
    assert (
        browser.post("/admin/limits", {"max_source_mb": "64", "sign_up": "on", "node_timeout_s": "45"}).status_code
        == 303
    )
    assert (ctx.settings.max_source_mb, ctx.settings.sign_up, ctx.settings.node_timeout_s) == (64, True, 45.0)
    assert 'name="sign_up" checked' in browser.get("/admin/limits").text
    refused = browser.post("/admin/limits", {"max_source_mb": "0"}, headers=HTMX)
    assert refused.status_code == 422 and "max source mb" in refused.json()["error"]["message"]
    assert ctx.settings.max_source_mb == 64
    browser.post("/admin/limits", {"max_source_mb": "64"})
    assert ctx.settings.sign_up is False, "an unticked box is sent as nothing"


def test_quotas_are_set_and_taken_away_by_their_form(browser, ctx, anna):
    path = f"/admin/quotas/{anna.workspace_id}"
    assert (
        "may hold up to 2 slots"
        in browser.post(path, {"slots": "2", "weight": "1.5"}, headers=HTMX).headers["hx-trigger"]
    )
    found = {q.workspace_id: q for q in quotas.list_quotas(ctx)}
    assert (found[anna.workspace_id].slots, found[anna.workspace_id].weight) == (2, 1.5)
    assert 'value="1.5"' in browser.get("/admin/quotas").text
    for bad in ({"slots": "-1"}, {"slots": "many"}, {"slots": "2", "weight": "0"}):
        assert browser.post(path, bad, headers=HTMX).status_code == 422
    assert browser.post("/admin/quotas/ws_gone", {"slots": "1"}, headers=HTMX).status_code == 404
    assert browser.post(path, {"slots": "", "weight": "1"}).headers["location"] == "/admin/quotas"
    assert next(q for q in quotas.list_quotas(ctx) if q.workspace_id == anna.workspace_id).slots is None


def test_settings_show_sessions_and_end_the_others(app, ctx, anna, as_anna):
    elsewhere = Browser(app).enter(ctx, anna)
    shown = as_anna.get("/settings.json").json()["sessions"]
    assert [s["current"] for s in shown].count(True) == 1 and len(shown) == 2
    other = next(s["id"] for s in shown if not s["current"])
    assert as_anna.post(f"/settings/sessions/{other}/end", headers=HTMX).status_code == 204
    assert elsewhere.get("/settings").status_code == 303
    third = Browser(app).enter(ctx, anna)
    assert "1 session ended" in as_anna.post("/settings/sessions/end-others", headers=HTMX).headers["hx-trigger"]
    assert third.get("/settings").status_code == 303 and as_anna.get("/settings").status_code == 200


def test_a_name_is_changed_and_the_old_address_still_leads_there(as_anna, ctx, anna):
    assert as_anna.post("/settings/profile", {"name": "Anna"}).headers["location"] == "/settings"
    assert sign_in.me(ctx, anna.access().principal).name == "Anna"
    assert as_anna.get("/account").headers["location"] == "/settings"


def test_a_session_is_known_by_the_program_that_started_it(app, ctx, as_anna):
    firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
    edge = "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/130.0 Safari/537.36 Edg/130.0"
    assert [program(a) for a in (firefox, edge, "python-httpx/0.28", "", "<b>\x07 x")] == [
        "Firefox on Linux", "Edge on Windows", "python-httpx/0.28", "", "<b>",
    ]  # fmt: skip
    form = {"email": "new@example.org", "password": "long enough, this"}
    fresh = Browser(app)
    ctx.settings = type(ctx.settings)(sign_up=True)
    assert fresh.post("/sign-up", form, headers={"User-Agent": firefox}).status_code == 303
    assert [s["program"] for s in fresh.get("/settings.json").json()["sessions"]] == ["Firefox on Linux"]


def test_a_workspace_is_renamed_and_led_to(as_anna, ctx, anna):
    assert as_anna.post("/w/default/rename", {"name": "vision"}).headers["location"] == "/w/vision/members"
    assert as_anna.get("/w/default/jobs").status_code == 404
    assert 'value="vision"' in as_anna.get("/w/vision/members").text
    assert as_anna.post("/w/vision/rename", {"name": "a b"}, headers=HTMX).status_code == 422


def test_members_are_added_changed_in_place_and_removed_by_owners_alone(app, as_anna, ctx, anna, berta):
    base = f"/w/{anna.workspace_id}"
    add_member(ctx, anna.workspace_id, berta, Role.MEMBER)
    assert 'aria-label="Role of berta@example.org"' in as_anna.get(f"{base}/members").text
    as_anna.post(f"{base}/members", {"email": berta.email, "role": "viewer"})
    roles = {m.email: m.role for m in workspaces.list_members(ctx, anna.access())}
    assert roles[berta.email] == "viewer"
    last = as_anna.post(f"{base}/members", {"email": anna.email, "role": "viewer"}, headers=HTMX)
    assert last.status_code == 409 and "needs an owner" in last.json()["error"]["message"]
    viewer = Browser(app).enter(ctx, berta)
    shown = viewer.get(f"{base}/members").text
    assert "Role of" not in shown and "Rename" not in shown and "Leave" in shown
    assert viewer.post(f"{base}/rename", {"name": "mine"}).status_code == 403


def test_the_health_page_has_disk_database_waiting_times_and_versions(browser, ctx, anna):
    job_id = add_job(ctx, anna, "waits")
    told = browser.get("/admin/health.json").json()["health"]
    assert told["queued"] == 1 and told["oldest_s"] >= 0 and told["wait_median_s"] is None
    assert told["database_size"] > 0 and told["write_ms"] > 0 and told["disks"][0]["free"] > 0
    assert told["problems"] == [] and told["versions"]["Shoal"] == __version__

    def start(session):
        job = session.get_one(Job, job_id)
        job.state, job.started_at = "running", job.created_at + timedelta(seconds=90)

    ctx.db.write(start)
    ctx.loops.watch("imports", lambda: Problem("imports", "failing", 3.0, "<b>no</b>"))
    page = browser.get("/admin/health").text
    assert "1 min 30 s" in page and "imports is failing" in page and "<b>no</b>" not in page


def test_the_parts_of_the_server_are_examined_after_the_page(browser):
    found = browser.get("/admin/health?part=findings", headers=HTMX).text
    assert "database" in found and "versions" in found and "skeleton" not in found
