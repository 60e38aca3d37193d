"""Access to the pages: sign-in, one-time links, expiry, foreign origins and hosts."""

import re
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import update
from web_browser import BASE, Browser

from shoal.core.people import Scope
from shoal.core.schema import utcnow
from shoal.core.settings import ServerSettings
from shoal.server.models.users import SessionRow
from shoal.server.web.app import build
from shoal.testing.server import AppClient, add_job, add_key, make_app, make_context

PASSWORD = "a long password"


@pytest.fixture
def signed_up(app):
    browser = Browser(app)
    answer = browser.post("/sign-up", {"email": "eva@example.org", "password": PASSWORD, "name": "Eva"})
    assert answer.status_code == 303, answer.text
    return browser


def changing_routes():
    for route in build().routes:
        for inner in getattr(route, "effective_route_contexts", lambda route=route: [route])():
            for method in inner.methods - {"GET", "HEAD"}:
                yield method, re.sub(r"\{\w+(:path)?\}", "x", inner.path)


def test_the_first_person_signs_up_and_is_in(signed_up):
    assert "eva@example.org" in signed_up.get("/").text


def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites(app):
    answer = Browser(app).post("/sign-up", {"email": "eva@example.org", "password": PASSWORD})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and "path=/" in cookie


def test_over_https_the_cookie_is_bound_to_the_host(app):
    browser = Browser(app, "https://shoal.example")
    answer = browser.post(
        "/sign-up", {"email": "eva@example.org", "password": PASSWORD}, origin="https://shoal.example"
    )
    assert answer.headers["set-cookie"].startswith("__Host-shoal_session=")
    assert "secure" in answer.headers["set-cookie"].lower()
    assert browser.get("/").status_code == 200


def test_a_wrong_password_keeps_the_form_and_says_so(app, signed_up):
    answer = Browser(app).post("/sign-in", {"email": "eva@example.org", "password": "wrong", "next": "/keys"})
    assert answer.status_code == 401
    assert "E-mail or password is wrong." in answer.text
    assert 'value="eva@example.org"' in answer.text and 'value="/keys"' in answer.text


@pytest.mark.parametrize(
    ("given", "to"),
    [
        ("/keys?a=1", "/keys?a=1"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("", "/"),
    ],
)
def test_signing_in_leads_back_but_never_away(app, signed_up, given, to):
    answer = Browser(app).post("/sign-in", {"email": "eva@example.org", "password": PASSWORD, "next": given})
    assert (answer.status_code, answer.headers["location"]) == (303, to)


def test_signing_out_ends_the_session_itself(app, signed_up):
    kept = dict(signed_up.cookies)
    assert signed_up.post("/sign-out").headers["location"] == "/sign-in"
    again = Browser(app)
    again.cookies.update(kept)
    assert again.get("/").status_code == 303


def test_an_expired_session_leads_to_sign_in_and_back_where_one_was(app, ctx, signed_up):
    ctx.db.write(lambda s: s.execute(update(SessionRow).values(expires_at=utcnow() - timedelta(seconds=1))) and None)
    answer = signed_up.get("/w/default/jobs?status=failed")
    where = urlsplit(answer.headers["location"])
    assert (answer.status_code, where.path) == (303, "/sign-in")
    assert parse_qs(where.query) == {"next": ["/w/default/jobs?status=failed"], "expired": ["1"]}
    assert "Your session has ended" in signed_up.get(answer.headers["location"]).text


def test_a_form_sent_after_the_session_expired_does_nothing_and_says_so(app, ctx, signed_up):
    ctx.db.write(lambda s: s.execute(update(SessionRow).values(expires_at=utcnow() - timedelta(seconds=1))) and None)
    plain = signed_up.post("/workspaces", {"name": "other"})
    assert plain.status_code == 401 and "Nothing was done" in plain.text
    by_htmx = signed_up.post("/workspaces", {"name": "other"}, headers={"HX-Request": "true"})
    assert by_htmx.status_code == 401 and by_htmx.json()["error"]["code"] == "key_expired"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:9999", "http://127.0.0.1"])
def test_changes_from_another_sites_page_are_refused(app, origin):
    routes = list(changing_routes())
    assert len(routes) > 20
    for method, path in routes:
        assert Browser(app).request(method, path, headers={"Origin": origin}).status_code == 403, (method, path)


def test_changes_without_a_word_on_their_origin_are_refused_for_cookies_only(app, ctx, signed_up, anna):
    assert signed_up.post("/workspaces", {"name": "w"}, origin=None).status_code == 403
    cross = {"Sec-Fetch-Site": "cross-site"}
    assert signed_up.post("/workspaces", {"name": "w"}, origin=None, headers=cross).status_code == 403
    same = {"Sec-Fetch-Site": "same-origin"}
    assert signed_up.post("/workspaces", {"name": "w"}, origin=None, headers=same).status_code == 303
    assert AppClient(app, anna.key).post("/workspaces", {"name": "by-key"}).status_code == 201


def test_the_api_refuses_a_foreign_origin_whoever_asks(app, anna):
    foreign = AppClient(app, anna.key, headers={"Origin": "https://evil.example"})
    assert foreign.post("/workspaces", {"name": "other"}).status_code == 403
    assert foreign.get("/workspaces").status_code == 200


def test_a_cookie_with_an_api_key_in_it_opens_nothing(app, anna):
    browser = Browser(app)
    browser.cookies.set("shoal_session_8000", anna.key)
    assert browser.get("/").status_code == 303


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""])
def test_a_private_server_answers_to_loopback_names_only(private_ctx, host):
    app = make_app(private_ctx)
    assert Browser(app).get("/sign-in", headers={"Host": host}).status_code == 403
    assert AppClient(app, headers={"Host": host}).get("/health").status_code == 403
    for name in ("localhost:8000", "127.0.0.1:8000", "[::1]:8000"):
        assert Browser(app).get("/sign-in", headers={"Host": name}).status_code == 200


def test_a_shared_server_with_names_answers_to_those_only(tmp_path):
    ctx = make_context(tmp_path, private=False, settings=ServerSettings(hosts="shoal.example, other.example"))
    try:
        app = make_app(ctx)
        for host, status in {
            "shoal.example": 200,
            "Other.Example:443": 200,
            "10.0.0.7": 200,
            "evil.example": 403,
        }.items():
            assert Browser(app).get("/sign-in", headers={"Host": host}).status_code == status, host
    finally:
        ctx.db.close()


def test_a_one_time_link_works_once(app, ctx, anna):
    offered = Browser(app).request("POST", "/enter", headers={"Authorization": f"Bearer {anna.key}"}).json()
    browser = Browser(app)
    answer = browser.get(offered["path"])
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "anna@example.org" in browser.get("/").text
    second = Browser(app).get(offered["path"])
    assert second.status_code == 401 and "used before" in second.text
    assert "shoals_" not in second.headers.get("set-cookie", "")


def test_a_one_time_link_is_too_old_after_two_minutes(app, ctx, anna):
    offered = Browser(app).request("POST", "/enter", headers={"Authorization": f"Bearer {anna.key}"}).json()
    ctx.db.write(lambda s: s.execute(update(SessionRow).values(expires_at=utcnow() - timedelta(seconds=1))) and None)
    assert "shoals_" not in Browser(app).get(offered["path"]).headers.get("set-cookie", "")


def test_a_link_is_only_made_for_a_key_that_may_do_everything_for_ever(app, ctx, anna):
    for key in (
        add_key(ctx, anna, "reader", scopes=[Scope.READ]),
        add_key(ctx, anna, "manager", scopes=[Scope.ADMIN]),
        add_key(ctx, anna, "lent", life=timedelta(hours=1)),
    ):
        assert Browser(app).request("POST", "/enter", headers={"Authorization": f"Bearer {key}"}).status_code == 403
    assert Browser(app).post("/enter").status_code == 401


def test_the_sign_in_page_of_a_private_server_names_the_command(private_ctx):
    assert "shoal console" in Browser(make_app(private_ctx)).get("/sign-in").text


def test_sign_up_is_shown_closed_once_there_is_an_admin(app, signed_up):
    assert "not open for sign-up" in Browser(app).get("/sign-up").text
    refused = Browser(app).post("/sign-up", {"email": "x@example.org", "password": PASSWORD})
    assert refused.status_code == 403


def test_changing_the_password_ends_other_sessions(app, signed_up):
    other = Browser(app)
    other.post("/sign-in", {"email": "eva@example.org", "password": PASSWORD})
    answer = signed_up.post("/settings/password", {"old": PASSWORD, "new": "another long one"})
    assert answer.status_code == 303
    assert signed_up.get("/").status_code == 200
    assert other.get("/").status_code == 303


def test_a_viewer_may_look_and_not_touch(app, ctx, anna, berta):
    add_job(ctx, anna)
    Browser(app).enter(ctx, anna).post("/w/default/members", {"email": berta.email, "role": "viewer"})
    browser = Browser(app).enter(ctx, berta)
    base = f"/w/{anna.workspace_id}"
    assert browser.get(f"{base}/jobs/a-job").status_code == 200
    for path in (f"{base}/jobs/a-job/stop", f"{base}/jobs/a-job/delete", f"{base}/secrets", f"{base}/members"):
        assert browser.post(path).status_code == 403, path


def test_servers_on_two_ports_of_one_machine_have_cookies_of_their_own(app):
    one = Browser(app, BASE)
    one.post("/sign-up", {"email": "eva@example.org", "password": PASSWORD})
    assert list(one.cookies) == ["shoal_session_8000"]
