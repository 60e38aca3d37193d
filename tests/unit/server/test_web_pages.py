"""Every page of the console: it answers, it has a JSON twin, nothing inline can run in it, and hostile names stay text."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fastapi import FastAPI
from web_browser import Browser
from web_swarms import add_swarm
from web_sweeps import add_sweep

from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.checkpoints import CheckpointPush
from shoal.core.datasets import DatasetBegin
from shoal.core.people import SecretSet
from shoal.core.sweeps import Choice
from shoal.server.artifacts import checkpoints, chunks, datasets
from shoal.server.context import Context
from shoal.server.models.jobs import Job
from shoal.server.models.workspaces import Workspace
from shoal.server.people import secrets
from shoal.server.web import render
from shoal.server.web.app import build
from shoal.store.hashing import chunk_hash
from shoal.store.wire import encode_frames
from shoal.testing.server import AppClient, Person, add_job, add_person, make_app, make_context

XSS = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
PAGES = [
    "/",
    "/workspaces",
    "/settings",
    "/keys",
    "/machines",
    "/queue",
    "/usage",
    "/leases/ending",
    "/w/default/jobs",
    "/w/default/jobs?status=queued&search=a",
    "/w/default/jobs/new",
    "/w/default/jobs/new?from=a-job",
    "/w/default/jobs/a-job",
    "/w/default/jobs/a-job/metrics",
    "/w/default/jobs/a-job/logs",
    "/w/default/jobs/a-job/checkpoints",
    "/w/default/jobs/a-job/system",
    "/w/default/jobs/a-job/figures",
    "/w/default/jobs/a-job/code",
    "/w/default/jobs/a-job/code?file=train.py",
    "/w/default/compare",
    "/w/default/compare?jobs=a-job&all=1",
    "/w/default/sweeps",
    "/w/default/sweeps/new",
    "/w/default/sweeps/new?job=a-job",
    "/w/default/sweeps/new?from=a-sweep",
    "/w/default/sweeps/a-sweep",
    "/w/default/sweeps/a-sweep?order=result",
    "/w/default/swarms",
    "/w/default/swarms/a-swarm",
    "/w/default/datasets",
    "/w/default/datasets/words",
    "/w/default/datasets/words?file=part/a.csv",
    "/w/default/checkpoints",
    "/w/default/leases",
    "/w/default/secrets",
    "/w/default/members",
]


def put_file(ctx: Context, anna: Person, path: str, data: bytes) -> FileEntry:
    digest = chunk_hash(data)
    chunks.put(ctx, anna.workspace_id, b"".join(encode_frames([(digest, data)])))
    return FileEntry(path=path, size=len(data), chunks=[Chunk(hash=digest, size=len(data))])


def add_dataset(ctx: Context, anna: Person, files: dict[str, bytes], name: str = "words") -> str:
    entries = [put_file(ctx, anna, path, files[path]) for path in sorted(files)]
    announced = datasets.begin(ctx, anna.access(), DatasetBegin(name=name))
    made = datasets.commit(ctx, anna.access(), announced.id, Manifest(files=entries))
    assert made.dataset is not None
    return made.dataset.id


def tags_of(text: str) -> list[tuple[str, dict[str, str | None]]]:
    found: list[tuple[str, dict[str, str | None]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.append((tag, dict(attrs)))

    Reader().feed(text)
    return found


# Pages only look, so all tests of them share one server.


@pytest.fixture(scope="module")
def ctx(tmp_path_factory):
    context = make_context(tmp_path_factory.mktemp("shared"), private=False)
    yield context
    context.db.close()


@pytest.fixture(scope="module")
def app(ctx: Context) -> FastAPI:
    return make_app(ctx)


@pytest.fixture(scope="module")
def anna(ctx: Context) -> Person:
    return add_person(ctx, "anna@example.org")


@pytest.fixture(scope="module")
def berta(ctx: Context) -> Person:
    return add_person(ctx, "berta@example.org")


@pytest.fixture(scope="module")
def filled(ctx: Context, anna: Person) -> Person:
    """Anna's workspace with one of everything, hostile text wherever text is free."""
    job_id = add_job(ctx, anna)
    add_dataset(ctx, anna, {"part/a.csv": f"id,text\n1,{XSS}\n".encode(), "readme.txt": XSS.encode()})
    add_sweep(ctx, anna, "a-sweep", job_id=job_id, metric=XSS, space={"text": Choice(values=[XSS, "b"])})
    add_swarm(ctx, anna, "a-swarm", reason=XSS, entry=["train.py", XSS], peers=[(XSS, "training", 10, {"device": XSS})])
    secrets.set_secret(ctx, anna.access(), SecretSet(name="token", value="planted-secret-value"))
    entry = put_file(ctx, anna, "model.bin", b"weights")
    checkpoints.push(ctx, anna.access(), CheckpointPush(name="pushed", manifest=Manifest(files=[entry])))

    def work(session) -> None:
        job = session.get_one(Job, job_id)
        job.reason, job.state, job.created_by = XSS, "failed", XSS
        job.spec = {**job.spec, "entry": ["train.py", XSS], "env": {"X": XSS}}

    ctx.db.write(work)
    return anna


@pytest.fixture(scope="module")
def browser(app: FastAPI, ctx: Context, filled: Person) -> Browser:
    return Browser(app).enter(ctx, filled)


def test_no_template_passes_markup_as_text():
    """What is passed to a macro is escaped, so people would read the tags."""
    folder = Path(render.__file__).parent / "templates"
    passed = re.compile(r"""["'][^"']*<[a-z]+[ >]""")
    found = [
        f"{path.name}: {expression[:80]}"
        for path in sorted(folder.glob("*.html"))
        for expression in re.findall(r"\{\{.*?\}\}", path.read_text(), re.S)
        if passed.search(expression)
    ]
    assert found == []


@pytest.mark.parametrize("path", PAGES)
def test_a_page_answers_and_nothing_inline_can_run_in_it(browser, path):
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    for tag, attributes in tags_of(answer.text):
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
        assert tag != "script" or (attributes.get("src") or "").startswith("/static/")
        for name in ("src", "href", "action", "hx-get", "hx-post"):
            assert (attributes.get(name) or "/").startswith(("/", "#")), (tag, attributes)
            assert not (attributes.get(name) or "").startswith("//"), (tag, attributes)
    assert "<script>alert" not in answer.text and "<img src=x" not in answer.text
    assert "planted-secret-value" not in answer.text


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_a_json_twin_by_name_and_by_accept_header(browser, path):
    bare, _, query = path.partition("?")
    by_name = browser.get(f"{'/index' if bare == '/' else bare}.json" + (f"?{query}" if query else ""))
    by_header = browser.get(path, headers={"Accept": "application/json"})
    for answer in (by_name, by_header):
        assert answer.status_code == 200
        assert isinstance(answer.json(), dict)
    assert by_name.json().keys() == by_header.json().keys()


@pytest.mark.parametrize("path", PAGES)
def test_a_stranger_is_sent_to_sign_in_and_back(app, path):
    answer = Browser(app).get(path)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/sign-in?next=%2F")
    assert Browser(app).get(path, headers={"Accept": "application/json"}).status_code == 401


@pytest.mark.parametrize("path", [p for p in PAGES if p.startswith("/w/")])
def test_another_persons_workspace_is_not_found(app, ctx, filled, berta, path):
    theirs = path.replace("/w/default", f"/w/{filled.workspace_id}")
    answer = Browser(app).enter(ctx, berta).get(theirs)
    assert answer.status_code == 404
    assert "a-job" not in answer.text


def test_every_route_of_the_console_says_what_it_does():
    for route in build().routes:
        for inner in getattr(route, "effective_route_contexts", lambda route=route: [route])():
            assert inner.endpoint.__doc__, inner.path


def test_hostile_text_is_shown_as_text(browser):
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in browser.get("/w/default/jobs/a-job").text
    assert "&lt;script&gt;" in browser.get("/w/default/datasets/words?file=readme.txt").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in browser.get("/w/default/sweeps/a-sweep").text


def test_a_name_that_ends_in_json_is_reached_by_its_id(app, ctx, filled):
    job_id = add_job(ctx, filled, "run.json", text=b"print(2)\n")
    listing = Browser(app).enter(ctx, filled).get("/w/default/jobs")
    assert f"/w/default/jobs/{job_id}" in listing.text
    assert "/w/default/jobs/run.json" not in listing.text


def test_htmx_gets_only_the_part_it_swaps(browser):
    whole, part = (
        browser.get("/w/default/jobs").text,
        browser.get("/w/default/jobs", headers={"HX-Request": "true"}).text,
    )
    assert "<html" in whole and "<html" not in part
    assert "a-job" in part


def test_a_page_that_is_not_there_says_so_in_html_and_json(browser):
    assert "no job" in browser.get("/w/default/jobs/nope").text
    assert browser.get("/w/default/jobs/nope").status_code == 404
    assert browser.get("/w/default/jobs/nope.json").json()["error"]["code"] == "not_found"
    assert browser.get("/no/such/page").status_code == 404


def test_static_files_are_kept_by_version_and_nothing_else_is_served(app):
    stranger = Browser(app)
    link = re.search(r"/static/css/app\.css\?v=\w+", stranger.get("/sign-in").text)
    assert link and "immutable" in stranger.get(link[0]).headers["cache-control"]
    plain = stranger.get("/static/js/app.js")
    assert plain.headers["cache-control"] == "no-cache"
    assert stranger.get("/static/js/app.js", headers={"If-None-Match": plain.headers["etag"]}).status_code == 304
    for path in ("../render.py", "..%2frender.py", "vendor/.lock-hash", "js", ""):
        assert stranger.get(f"/static/{path}").status_code in (303, 404)


def test_no_page_loads_more_than_200_kb_of_script(browser):
    for path in PAGES:
        seen, todo, size = set(), re.findall(r'<script[^>]* src="([^"?]+)', browser.get(path).text), 0
        while todo:
            script = todo.pop()
            if script in seen:
                continue
            seen.add(script)
            text = browser.get(script).text
            size += len(text.encode())
            todo += [f"/static/js/{name}" for name in re.findall(r'from "\./(\w+\.js)"', text)]
        assert size <= 200_000, (path, size)


def test_the_job_list_is_quick_with_a_thousand_jobs(app, ctx, filled):
    import time

    def work(session) -> None:
        first = session.query(Job).first()
        for n in range(1000):
            session.add(
                Job(
                    id=f"job_{n:026d}", workspace_id=first.workspace_id, name=f"j{n}", spec=first.spec, inputs=[],
                    source_id=first.source_id, created_by="anna@example.org", state="succeeded", priority=0,
                    created_at=first.created_at, ended_at=first.created_at,
                )
            )  # fmt: skip

    ctx.db.write(work)
    browser = Browser(app).enter(ctx, filled)
    for path in ("/", "/w/default/jobs", "/usage"):
        browser.get(path)
        started = time.perf_counter()
        assert browser.get(path).status_code == 200
        assert time.perf_counter() - started < 2.0, path  # 0.2 s alone on a machine; tests share theirs


def test_workspaces_with_one_name_are_told_apart(app, ctx, filled, berta):
    with ctx.db.read() as session:
        assert session.query(Workspace).filter_by(name="default").count() == 2
    answer = Browser(app).enter(ctx, berta).get("/w/default/jobs.json")
    assert answer.json()["jobs"] == []


def test_the_api_knows_a_browser_by_its_session(app, ctx, filled):
    browser = Browser(app).enter(ctx, filled)
    assert "a-job" in [j["name"] for j in browser.get("/api/v1/workspaces/default/jobs").json()]
    assert AppClient(app, headers={"Cookie": f"shoal_session={filled.key}"}).get("/auth/me").status_code == 401
