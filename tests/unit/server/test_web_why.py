"""The page of a job that waits: why, when it will likely start, and the change that would start it now, done by a button."""

import json
import re
from html import unescape

import pytest
from sqlalchemy import update
from web_browser import Browser
from web_drafts import HTMX

from shoal.core.jobs import JobSpec
from shoal.core.people import Role
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Job
from shoal.server.queue import service as queue
from shoal.testing.server import add_job, add_member, add_node, add_source

PAGE = "/w/default/jobs/big"


@pytest.fixture
def waiting(ctx, anna):
    """One that needs all four slots while another holds one."""
    add_node(ctx, add_job(ctx, anna, "small"))
    ctx.db.write(lambda s: s.execute(update(Job).values(state="running")))
    spec = JobSpec(name="big", entry=["train.py"], source_id=add_source(ctx, anna), accels=4)
    return jobs.submit(ctx, anna.access(), spec).id


def test_the_page_says_why_it_waits_and_what_would_start_it(browser, ctx, anna, waiting):
    told = browser.get(f"{PAGE}.json").json()["why"]
    assert told == json.loads(queue.why(ctx, anna.access(), "big").model_dump_json()) | {"starts_at": told["starts_at"]}
    assert told["reason"] == "slots" and told["suggestion"]["change"]["accels"] == 3
    page = unescape(browser.get(PAGE).text)
    for text in (
        "Why it waits",
        "Likely start",
        *told["evidence"],
        told["suggestion"]["command"],
        told["suggestion"]["what"][1:],
    ):
        assert text in page, text
    part = browser.get(f"{PAGE}?part=why", headers=HTMX).text
    assert part.lstrip().startswith("<section") and "Attempts" not in part


def test_where_the_queue_is_long_the_page_comes_first(browser, ctx, anna, waiting):
    ctx.live.waiting = {f"job_{n}": "its turn" for n in range(1_000)}
    page = browser.get(PAGE).text
    assert "Why it waits" not in page and f'hx-get="{PAGE}?part=why" hx-trigger="load"' in page
    assert "Why it waits" in browser.get(f"{PAGE}?part=why", headers=HTMX).text
    assert browser.get(f"{PAGE}.json").json()["why"]["reason"] == "slots"


def test_the_button_does_what_is_suggested(browser, ctx, anna, waiting):
    page = browser.get(PAGE).text
    change = unescape(re.search(r'name="change" value="([^"]*)"', page)[1])
    done = browser.post(f"{PAGE}/change", {"change": change}, headers=HTMX)
    assert done.status_code == 204 and "shoal:changed" in done.headers["hx-trigger"]
    assert jobs.get(ctx, anna.access(), "big").spec.accels == 3
    assert queue.why(ctx, anna.access(), "big").reason == "starting"
    assert "Nothing you could change" not in browser.get(PAGE).text


def test_a_change_that_makes_no_sense_is_refused_and_changes_nothing(browser, ctx, anna, waiting):
    for change, said in (
        ("", "Invalid JSON"),
        ('{"accels": 0}', "accels"),
        ("{}", "Say what to change"),
        ('{"accels": 99}', "never run"),
    ):
        answer = browser.post(f"{PAGE}/change", {"change": change}, headers=HTMX)
        assert answer.status_code in (409, 422) and said in answer.json()["error"]["message"], change
    assert jobs.get(ctx, anna.access(), "big").spec.accels == 4


def test_one_that_does_not_wait_needs_no_reason(browser, ctx, anna, waiting):
    assert "Why it waits" not in browser.get("/w/default/jobs/small").text
    jobs.stop(ctx, anna.access(), "big")
    assert "Why it waits" not in browser.get(PAGE).text
    assert browser.get(f"{PAGE}?part=why", headers=HTMX).text.strip() == ""


def test_a_viewer_sees_the_command_and_no_button(app, ctx, anna, berta, waiting):
    add_member(ctx, anna.workspace_id, berta, Role.VIEWER)
    hers, path = Browser(app).enter(ctx, berta), f"/w/{anna.workspace_id}/jobs/big"
    page = hers.get(path).text
    assert "shoal training change big" in page and "Change it so" not in page
    assert hers.post(f"{path}/change", {"change": '{"accels": 1}'}).status_code == 403
