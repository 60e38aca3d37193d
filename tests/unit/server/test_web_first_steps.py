"""A job from the form: its code is looked through, and one that should have a preflight is tried before it is submitted."""

import re

import pytest
from test_preflights import FINDING, ended, jobs_left
from web_drafts import HTMX, NEW, TwoMachines, preview

from shoal.testing.server import add_source

PASSED = {"complete": True, "steps": 4, "findings": [FINDING | {"severity": "warning"}]}
FAULTY = b"import torch\nname = input('who? <script>')\n"


@pytest.fixture
def form(ctx, anna):
    ctx.engine = TwoMachines()
    return {"name": "big", "source_id": add_source(ctx, anna), "entry": "train.py", "min_nodes": "2", "accels": "1"}


def hidden(part):
    """Return the fields that the part adds to the form, with the one that the page sends when it asks again."""
    return dict(re.findall(r'<input type="hidden" form="new-job" name="(\w+)" value="([^"]*)">', part)) | {"asks": "1"}


def begin(browser, form):
    answer = browser.post(NEW, form, headers=HTMX)
    assert answer.status_code == 202, answer.text
    assert (answer.headers["HX-Retarget"], answer.headers["HX-Reswap"]) == ("#preflight", "innerHTML")
    return answer.text


def test_a_job_over_two_nodes_is_tried_first_and_then_starts_with_what_was_found(browser, ctx, app, as_anna, form):
    part = begin(browser, form)
    assert "tried before it starts, as it is to run on more than one node" in part and "every 1s" in part
    asks = form | hidden(part)
    assert browser.post(NEW, asks, headers=HTMX).status_code == 202
    assert browser.post(NEW, form | hidden(part), headers=HTMX).status_code == 202
    (name,) = jobs_left(ctx)[1]
    assert name.startswith("preflight-big-"), "asking again, or pressing the button again, starts no other"
    ended(ctx, app, asks["preflight"], PASSED)
    answer = browser.post(NEW, asks, headers=HTMX)
    assert (answer.status_code, answer.headers["HX-Redirect"]) == (204, "/w/default/jobs/big")
    assert jobs_left(ctx) == (1, {"big"})
    view = as_anna.get("/workspaces/default/jobs/big").json()
    assert [f["rule"] for f in view["preflight"]["findings"]] == ["labels"]


def test_one_with_errors_is_not_started_unless_told_to(browser, ctx, app, form):
    part = begin(browser, form)
    asks = form | hidden(part)
    ended(ctx, app, asks["preflight"], {"complete": True, "findings": [FINDING]}, code=1)
    told = browser.post(NEW, asks, headers=HTMX)
    assert told.status_code == 202 and "It was not started." in told.text and "Labels go from 1 to 4." in told.text
    assert "every 1s" not in told.text and hidden(told.text) == {"asks": "1"}
    assert jobs_left(ctx)[0] == 0
    assert browser.post(NEW, form | {"as_it_is": "1"}, headers=HTMX).status_code == 204
    assert jobs_left(ctx) == (1, {"big"})


def test_while_it_is_tried_it_can_be_started_without(browser, ctx, form):
    part = begin(browser, form)
    assert browser.post(NEW, form | hidden(part) | {"as_it_is": "1"}, headers=HTMX).status_code == 204
    assert jobs_left(ctx) == (1, {"big"})


def test_a_form_that_changes_meanwhile_starts_nothing(browser, ctx, form):
    part = begin(browser, form)
    answer = browser.post(NEW, form | hidden(part) | {"accels": "2"}, headers=HTMX)
    assert answer.status_code == 202 and "The form was changed" in answer.text
    assert jobs_left(ctx)[0] == 0


def test_one_that_takes_too_long_is_not_waited_for(browser, ctx, form):
    part = begin(browser, form)
    assert browser.post(NEW, form | hidden(part) | {"since": "1"}, headers=HTMX).status_code == 204
    assert jobs_left(ctx) == (1, {"big"})


def test_what_goes_wrong_while_the_page_asks_is_said_once(browser, ctx, form):
    part = begin(browser, form)
    answer = browser.post(NEW, form | hidden(part) | {"name": "not a name"}, headers=HTMX)
    assert answer.status_code == 202 and 'role="alert"' in answer.text and "every 1s" not in answer.text


def test_a_small_job_starts_at_once(browser, ctx, form):
    assert browser.post(NEW, form | {"min_nodes": "1"}, headers=HTMX).status_code == 204
    assert jobs_left(ctx) == (1, {"big"})


def test_the_form_shows_what_is_wrong_with_its_code(browser, ctx, anna, form):
    bad = form | {"source_id": add_source(ctx, anna, FAULTY), "min_nodes": "1"}
    shown = preview(browser, **bad)
    assert "input waits for keyboard input." in shown and "train.py:2" in shown and "asks-for-input" in shown
    assert 'id="code-check"' not in preview(browser, **form)
    assert 'id="code-check"' not in preview(browser, name="x"), "there is no code yet"


def test_anybody_may_ask_for_the_check_of_code_they_can_see(ctx, anna, as_anna, as_berta, form):
    spec = {"name": "x", "entry": ["train.py"], "source_id": add_source(ctx, anna, FAULTY), "datasets": ["a@1", "b"]}
    found = as_anna.post("/workspaces/default/sources/check", spec).json()
    assert [(f["rule"], f["line"]) for f in found["findings"]] == [("asks-for-input", 2)]
    assert as_berta.post("/workspaces/default/sources/check", spec).status_code == 404
    for entry in (["run.sh"], ["gone.py"]):
        assert as_anna.post("/workspaces/default/sources/check", spec | {"entry": entry}).json()["findings"] == []


def test_code_that_cannot_be_looked_through_stands_in_nobodys_way(ctx, anna, as_anna):
    for text in (b"x = " + b"-" * 200_000 + b"1\n", b"(" * 100_000, b"a" + b".b" * 100_000, b"\xff\xfe\x00"):
        spec = {"name": "x", "entry": ["train.py"], "source_id": add_source(ctx, anna, text)}
        answer = as_anna.post("/workspaces/default/sources/check", spec)
        assert answer.status_code == 200 and len(answer.json()["findings"]) <= 1
