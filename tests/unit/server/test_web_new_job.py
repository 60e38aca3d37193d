"""The new-job form: refused with all that was typed, left and taken up again, for members alone."""

import pytest
from sqlalchemy import update
from web_browser import Browser
from web_drafts import HTMX, NEW, fill, form_of

from shoal.agent.devices.device import Device
from shoal.core.people import Role
from shoal.engines.base import Machine
from shoal.server.jobs import service as jobs
from shoal.server.models.sources import Source
from shoal.testing.server import add_job, add_member, add_source


@pytest.fixture
def browser(app, ctx, anna):
    return Browser(app).enter(ctx, anna)


def test_a_refused_form_comes_back_with_all_that_was_typed(browser, ctx, anna):
    fill(ctx, anna)
    form = {
        "name": "taken", "source_id": add_source(ctx, anna), "entry": "train.py", "line": "--lr 1", "dataset": ["words"],
        "version.words": "1", "env_name": ["A"], "env_value": ["typed & kept"], "secret_env": ["T"], "secret_name": ["thing"],
        "time_limit": "8h",
    }  # fmt: skip
    assert browser.post(NEW, form).status_code == 303
    refused = browser.post(NEW, form)
    assert refused.status_code == 409 and "already a job &#39;taken&#39;" in refused.text
    again = form_of(refused.text)
    for name, value in form.items():
        assert again[name] == (value if isinstance(value, list) else [value]), name
    assert browser.post(NEW, again | {"name": ["free"]}).headers["location"] == "/w/default/jobs/free"
    spec = jobs.get(ctx, anna.access(), "free").spec
    assert (spec.datasets, spec.env, spec.secrets) == (["words@1"], {"A": "typed & kept"}, {"T": "thing"})


def test_htmx_is_told_what_is_wrong_and_where_to_go(browser, ctx, anna):
    nothing = browser.post(NEW, {"name": "x"}, headers=HTMX)
    assert nothing.status_code == 422 and nothing.json()["error"]["message"].startswith("Provide the code first")
    source = {"source_id": add_source(ctx, anna)}
    assert browser.post(NEW, source, headers=HTMX).json()["error"]["message"] == "Choose the script to run."
    unnamed = browser.post(NEW, source | {"entry": "train.py"}, headers=HTMX)
    assert unnamed.json()["error"]["message"] == "Give the job a name."
    missing = browser.post(NEW, source | {"entry": "other.py", "name": "x"}, headers=HTMX)
    assert missing.json()["error"]["code"] == "entry_not_found"
    for pairs, said in (
        ({"env_name": ["A", "A"], "env_value": ["1", "2"]}, "A is given twice"),
        ({"env_name": ["A"], "env_value": ["1"], "secret_env": ["A"], "secret_name": ["s"]}, "both as a variable"),
        ({"env_name": [""], "env_value": ["1"]}, "no variable name"),
        ({"env_name": ["RANK"], "env_value": ["1"]}, "set by Shoal"),
    ):
        answer = browser.post(NEW, source | {"entry": "train.py", "name": "x"} | pairs, headers=HTMX)
        assert answer.status_code == 422 and said in answer.json()["error"]["message"]
    made = browser.post(NEW, source | {"entry": "train.py", "name": "x"}, headers=HTMX)
    assert made.headers["hx-redirect"] == "/w/default/jobs/x"


def test_a_draft_left_behind_is_put_back_into_the_form(browser, ctx, anna):
    typed = {"name": "later", "source_id": add_source(ctx, anna), "entry": "train.py", "edited": "rows",
             "arg_name": ["--lr"], "arg_value": ["1"], "arg_kind": ["integer"], "keep_best": "acc"}  # fmt: skip
    form = browser.post(f"{NEW}/restore", typed, headers=HTMX).text
    assert "<html" not in form
    again = form_of(form)
    assert again["line"] == ["--lr 1"]
    for name, value in typed.items():
        assert again[name] == (value if isinstance(value, list) else [value]), name
    gone = browser.post(f"{NEW}/restore", typed | {"source_id": "src_gone"}, headers=HTMX).text
    assert "no longer exists" in gone


def test_nobody_brings_code_or_submits_without_a_session_or_from_elsewhere(app, browser, ctx, anna, berta):
    assert Browser(app).post(NEW, {"name": "x"}, headers=HTMX).status_code == 401
    assert Browser(app).get(NEW).headers["location"] == "/sign-in?next=%2Fw%2Fdefault%2Fjobs%2Fnew"
    for path in (NEW, f"{NEW}/preview", f"{NEW}/restore", f"{NEW}/git"):
        assert browser.post(path, {}, origin="https://evil.example").status_code == 403
    add_member(ctx, anna.workspace_id, berta, Role.VIEWER)
    viewer = Browser(app).enter(ctx, berta)
    assert viewer.get(f"/w/{anna.workspace_id}/jobs/new").status_code == 403
    assert "New job" not in viewer.get(f"/w/{anna.workspace_id}/jobs").text
    mine = add_source(ctx, anna)
    stolen = viewer.post(NEW, {"name": "x", "source_id": mine, "entry": "train.py"}, headers=HTMX)
    assert stolen.status_code == 404
    assert viewer.get(f"{NEW}.json?source={mine}").json()["source"] is None


def test_the_form_offers_the_models_of_the_pool_and_says_how_many_are_free_now(browser, ctx, anna):
    inventory = tuple(
        Device(kind="cuda", index=i, uuid=f"GPU-{i}", model=model, problem="GPU is lost" if i == 1 else "")
        for i, model in enumerate(("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "Tesla T4"))
    )
    engine = next(iter(ctx.engine._engines.values()))
    assert "Free now:" not in browser.get(NEW).text
    engine.capacity = lambda: [Machine(name="gpu1", kind="cuda", slots=3, inventory=inventory)]
    text = browser.get(NEW).text
    assert "Free now: 1 of 2 H100 80GB HBM3, 1 of 1 Tesla T4<" in text and '<option value="Tesla T4">' in text


def test_a_job_named_new_is_reached_by_its_id(browser, ctx, anna):
    job_id = add_job(ctx, anna, "new")
    assert f'href="/w/default/jobs/{job_id}"' in browser.get("/w/default/jobs").text
    assert browser.get(f"/w/default/jobs/{job_id}").status_code == 200


def test_names_are_suggested_that_are_still_free(browser, ctx, anna):
    for name in ("net", "net-2"):
        add_job(ctx, anna, name)
    names = [browser.get(f"{NEW}.json?from={old}").json()["draft"]["name"] for old in ("net", "net-2")]
    assert names == ["net-3", "net-3"]


def test_hostile_text_in_a_draft_stays_text(browser, ctx, anna):
    xss = '"><img src=x onerror=alert(1)>'
    source = add_source(ctx, anna)
    ctx.db.write(lambda s: s.execute(update(Source).values(origin={"kind": "archive", "path": xss})) and None)
    form = {
        "name": xss,
        "line": xss,
        "env_name": [xss],
        "env_value": [xss],
        "git_url": xss,
        "source_id": source,
        "entry": xss,
    }
    for path in (f"{NEW}/restore", f"{NEW}/preview"):
        assert "<img src=x" not in browser.post(path, form, headers=HTMX).text
    assert "<img src=x" not in browser.post(NEW, form).text
