"""The way to a job's JupyterLab, without one: who is let through, who is not, and what a request must show."""

import h11
import pytest
from sqlalchemy import delete, update
from web_browser import Browser

from shoal.core.errors import InvalidSpec, Refused
from shoal.core.people import Role
from shoal.core.schema import utcnow
from shoal.server.jobs.attach_sessions import AttachEndpoint
from shoal.server.jupyter import ports
from shoal.server.jupyter.ports import Guest, Lab
from shoal.server.jupyter.proxy import refusal
from shoal.server.jupyter.service import may_still
from shoal.server.models.jobs import Job, Node
from shoal.server.models.users import SessionRow, User
from shoal.server.models.workspaces import Member
from shoal.server.people.sign_in import start_session
from shoal.testing.server import add_job, add_member, add_node, add_person


@pytest.fixture
def lab(ctx):
    lab = Lab(ctx, AttachEndpoint("att_x.0", "a-job", "", ""), "/tmp/sock", "t" * 43)
    lab.port = 41000
    return lab


@pytest.fixture
def running(ctx, anna, monkeypatch):
    """A job that runs, whose agent has not come yet."""
    monkeypatch.setattr(ctx.gateway, "demand", lambda: None)
    job_id = add_job(ctx, anna, "a-job")
    add_node(ctx, job_id)
    ctx.db.write(lambda s: s.execute(update(Job).values(state="running")) and None)
    ctx.db.write(lambda s: s.execute(update(Node).values(state="running")) and None)
    return job_id


def test_while_it_starts_a_page_says_so_and_looks_again(ctx, browser, running):
    page = browser.get("/w/default/jobs/a-job/jupyter")
    assert page.status_code == 200 and page.headers["refresh"] == "1" and "It is starting in job a-job" in page.text
    assert browser.get("/w/default/jobs/a-job/jupyter.json").json() == {"job": "a-job", "node": 0, "is_ready": False}
    assert browser.get("/w/default/jobs/a-job/jupyter?node=7").status_code == 404
    [order] = ctx.commands.pending(ctx.attached._endpoints.popitem()[0][0], 0)
    assert order["do"] == "attach"


def test_others_find_nothing_viewers_may_not_and_a_key_is_no_browser(app, ctx, anna, as_anna, browser, running):
    path = f"/w/{anna.workspace_id}/jobs/a-job/jupyter"
    stranger, viewer = (add_person(ctx, f"{name}@example.org") for name in ("sam", "vera"))
    add_member(ctx, anna.workspace_id, viewer, Role.VIEWER)
    assert Browser(app).enter(ctx, stranger).get(path).status_code == 404
    assert Browser(app).enter(ctx, viewer).get(path).status_code == 403
    assert Browser(app).get(path).headers["location"].startswith("/sign-in?next=")
    by_key = Browser(app).get(path, headers={"Authorization": f"Bearer {anna.key}"})
    assert by_key.status_code == 403 and "not with an API key" in by_key.text
    assert as_anna.post("/workspaces/default/jobs/a-job/jupyter", {}).json()["is_ready"] is False


def test_a_code_works_once_and_for_a_minute(lab, monkeypatch):
    guest = Guest("session_x", "usr_x", "ws_x")
    code, late = lab.offer(guest), lab.offer(guest)
    token = lab.admit(code)
    assert lab.guest(token) is guest
    assert lab.admit(code) is None and lab.guest("") is None and lab.guest(code) is None
    now = ports.time.monotonic()
    monkeypatch.setattr(ports.time, "monotonic", lambda: now + 61)
    assert lab.admit(late) is None


def test_whoever_signs_out_is_disabled_or_leaves_the_workspace_is_out(ctx, anna):
    session = ctx.db.write(lambda s: start_session(s, s.get_one(User, anna.user_id)))
    with ctx.db.read() as reading:
        session_id = reading.scalars(SessionRow.__table__.select()).first()
    guest = Guest(session_id, anna.user_id, anna.workspace_id)
    assert session.token and may_still(ctx, guest)
    assert not may_still(ctx, Guest("session_other", anna.user_id, anna.workspace_id))
    assert not may_still(ctx, Guest(session_id, anna.user_id, "ws_other"))
    for there, back in (
        (update(User).values(disabled_at=utcnow()), update(User).values(disabled_at=None)),
        (update(Member).values(role=Role.VIEWER), update(Member).values(role=Role.MEMBER)),
        (update(SessionRow).values(expires_at=utcnow()), None),
    ):
        ctx.db.write(lambda s, change=there: s.execute(change) and None)
        assert not may_still(ctx, guest), there
        if back is not None:
            ctx.db.write(lambda s, change=back: s.execute(change) and None)
            assert may_still(ctx, guest)
    ctx.db.write(lambda s: s.execute(delete(SessionRow)) and None)
    assert not may_still(ctx, guest)


OWN = "http://localhost:41000"


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, None),
        ("GET", {"Origin": OWN}, None),
        ("POST", {"Origin": OWN, "Sec-Fetch-Site": "same-origin"}, None),
        ("GET", {"Upgrade": "websocket", "Origin": OWN}, None),
        ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, None),
        ("GET", {"Host": "evil.example"}, 403),
        ("GET", {"Origin": "http://evil.example"}, 403),
        ("GET", {"Origin": "http://localhost:41001"}, 403),
        ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ("GET", {"Service-Worker": "script"}, 403),
        ("GET", {"Upgrade": "websocket"}, 403),
        ("GET", {"Upgrade": "websocket", "Origin": "http://evil.example"}, 403),
        ("POST", {}, 403),
        ("DELETE", {"Origin": "null"}, 403),
        ("POST", {"Origin": OWN, "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_only_its_own_pages_may_ask(ctx, lab, method, headers, status):
    object.__setattr__(ctx.settings, "hosts", "shoal.example.org")
    request = h11.Request(method=method, target="/api", headers=list({"Host": "localhost:41000", **headers}.items()))
    refused = refusal(lab, request)
    assert (refused and refused.status) == status


def test_behind_tls_it_has_the_name_the_settings_say_and_is_refused_without(ctx, lab):
    assert ports.url(ctx, lab, scheme="http", host="127.0.0.1") == OWN, "another name, so that no cookie is shared"
    assert ports.url(ctx, lab, scheme="http", host="gpu.example.org") == "http://gpu.example.org:41000"
    with pytest.raises(Refused, match="its own address"):
        ports.url(ctx, lab, scheme="https", host="gpu.example.org")
    object.__setattr__(ctx.settings, "jupyter_url", "https://jupyter-{port}.example.org/")
    object.__setattr__(ctx.settings, "hosts", "shoal.example.org")
    assert ports.url(ctx, lab, scheme="https", host="x") == "https://jupyter-41000.example.org"
    for host, is_ours in (("jupyter-41000.example.org", True), ("jupyter-41001.example.org", False)):
        asked = h11.Request(method="GET", target="/", headers=[("Host", host)])
        assert (refusal(lab, asked) is None) == is_ours


def test_a_range_of_ports_is_read_or_refused():
    assert list(ports._ports("")) == [0] and list(ports._ports("41000-41002")) == [41000, 41001, 41002]
    with pytest.raises(InvalidSpec, match="41000-41099"):
        ports._ports("41000")
