"""Preflights on the server: small marked jobs, whose report goes with the job it was made for, and of which nothing else stays."""

import json
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update

from shoal.core.billing import QuoteRequest
from shoal.core.errors import CanNeverRun, InvalidSpec
from shoal.core.jobs import JobSpec
from shoal.core.preflight import VARIABLE
from shoal.core.schema import utcnow
from shoal.server.billing import quotes
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Event, Job
from shoal.server.preflight import service as preflights
from shoal.testing.server import AppClient, add_node, add_source

PATH = "/workspaces/default/preflights"
FINDING = {"rule": "labels", "severity": "error", "message": "Labels go from 1 to 4.", "why": "w", "fix": "f"}
FACTS = {"step_s": 0.5, "first_step_s": 3.0, "total_steps": 1000, "something_new": 1}


@pytest.fixture
def spec(ctx, anna):
    return JobSpec(
        name="big", entry=["torchrun", "train.py", "--lr", "1"], source_id=add_source(ctx, anna), max_nodes=2, min_nodes=2,
        accels=2, env={"A": "b"}, keep_last=3, budget="2h", launcher="torchrun",
    )  # fmt: skip


def ended(ctx, app, preflight_id, report, *, code=0):
    """Its agent's last words."""
    agent = AppClient(app, headers={"X-Shoal-Agent": add_node(ctx, preflight_id)})
    ctx.db.write(lambda s: s.execute(update(Job).where(Job.id == preflight_id).values(state="starting")))
    beat = {"state": "exited", "exit_code": code, "failed_rank": 0 if code else None, "preflight": report}
    for more in ({}, {"final": True}):
        assert agent.post("/agent/beat", beat | more).status_code == 200


def jobs_left(ctx):
    with ctx.db.read() as session:
        return session.scalar(select(func.count()).select_from(Job)), set(session.scalars(select(Job.name)))


def test_it_is_a_small_marked_job_of_the_same_script(ctx, as_anna, spec):
    view = as_anna.post(PATH, spec.model_dump()).json()
    assert view["status"] == "queued" and view["report"] is None and view["passed"] is None
    job = as_anna.get(f"/workspaces/default/jobs/{view['id']}").json()
    small = job["spec"]
    assert job["is_preflight"] and small["entry"] == ["train.py", "--lr", "1"] and small["launcher"] == "direct"
    assert (small["min_nodes"], small["max_nodes"], small["accels"], small["max_restarts"]) == (1, 1, 1, 0)
    assert small["env"]["A"] == "b" and small["budget"] is None and small["time_limit_s"] == 360
    asked = json.loads(small["env"][VARIABLE])
    assert asked == {"nodes": 2, "accels": 2, "keep_last": 3, "limit_s": 300.0}


def test_what_could_not_be_submitted_is_refused_as_the_job_itself_would_be(ctx, anna, spec):
    with pytest.raises(CanNeverRun):
        preflights.start(ctx, anna.access(), spec.model_copy(update={"accels": 64}))
    with pytest.raises(InvalidSpec, match=r"'run.sh' is not one"):
        preflights.start(ctx, anna.access(), spec.model_copy(update={"entry": ["run.sh"]}))
    assert jobs_left(ctx)[0] == 0


def test_its_report_is_told_and_goes_with_the_job_and_nothing_else_stays(ctx, app, as_anna, spec):
    begun = as_anna.post(PATH, spec.model_dump()).json()
    ended(ctx, app, begun["id"], {"complete": True, "phases": ["import"], "steps": 4, "facts": FACTS, "findings": []})
    view = as_anna.get(f"{PATH}/{begun['id']}").json()
    assert view["passed"] is True and view["report"]["facts"]["step_s"] == 0.5
    made = as_anna.post(f"/workspaces/default/jobs?preflight={begun['id']}", spec.model_dump())
    assert made.status_code == 201 and made.json()["preflight"]["steps"] == 4 and not made.json()["is_preflight"]
    assert jobs_left(ctx) == (1, {"big"})
    told = [e["message"] for e in made.json()["events"]]
    assert told[0] == "preflight of 4 steps: nothing found" and "submitted by" in told[1]
    assert as_anna.get(f"{PATH}/{begun['id']}").status_code == 404


def test_errors_it_has_found_make_it_fail_and_it_can_be_removed(ctx, app, as_anna, spec):
    begun = as_anna.post(PATH, spec.model_dump()).json()
    ended(ctx, app, begun["id"], {"complete": True, "findings": [FINDING]}, code=1)
    view = as_anna.get(f"{PATH}/{begun['id']}").json()
    assert view["status"] == "failed" and view["passed"] is False
    assert view["report"]["findings"][0] | FINDING == view["report"]["findings"][0]
    assert as_anna.delete(f"{PATH}/{begun['id']}").status_code == 204
    assert jobs_left(ctx)[0] == 0


def test_a_report_that_is_none_harms_nobody(ctx, app, as_anna, spec):
    begun = as_anna.post(PATH, spec.model_dump()).json()
    ended(ctx, app, begun["id"], {"findings": [{"rule": 7}], "steps": "many"})
    view = as_anna.get(f"{PATH}/{begun['id']}").json()
    assert view["report"]["complete"] is False and view["report"]["findings"] == []


def test_a_job_that_is_no_preflight_cannot_pass_for_one(ctx, app, anna, as_anna, spec):
    job = jobs.submit(ctx, anna.access(), spec)
    assert as_anna.get(f"{PATH}/{job.id}").status_code == 404
    assert as_anna.delete(f"{PATH}/{job.id}").status_code == 404
    ended(ctx, app, job.id, {"complete": True, "findings": [FINDING]})
    assert as_anna.get(f"/workspaces/default/jobs/{job.id}").json()["preflight"] is None


def test_one_that_waits_is_removed_too_and_nobody_elses(ctx, as_anna, as_berta, spec):
    begun = as_anna.post(PATH, spec.model_dump()).json()
    assert as_berta.delete(f"{PATH}/{begun['id']}").status_code == 404
    assert as_anna.delete(f"{PATH}/{begun['id']}").status_code == 204
    assert jobs_left(ctx)[0] == 0


def test_those_that_were_left_behind_go_after_a_while(ctx, app, anna, as_anna, spec):
    old, new = (as_anna.post(PATH, spec.model_dump()).json() for _ in range(2))
    for view in (old, new):
        ended(ctx, app, view["id"], {"complete": True, "findings": []})
    jobs.submit(ctx, anna.access(), spec.model_copy(update={"name": "preflight-of-my-own"}))
    long_ago = utcnow() - timedelta(hours=1)
    ctx.db.write(lambda s: s.execute(update(Job).where(Job.id != new["id"]).values(ended_at=long_ago)))
    preflights.clear(ctx)
    assert jobs_left(ctx)[1] == {new["name"], "preflight-of-my-own"}
    with ctx.db.read() as session:
        assert session.scalar(select(func.count()).select_from(Event).where(Event.job_id == old["id"])) == 0


def test_one_that_nobody_asks_about_is_ended_and_removed_as_its_owner_must_be_gone(ctx, as_anna, spec):
    forgotten, asked_about = (as_anna.post(PATH, spec.model_dump()).json() for _ in range(2))
    preflights.clear(ctx)
    assert jobs_left(ctx)[0] == 2
    for view in (forgotten, asked_about):
        ctx.live.asked_for[view["id"]] -= 121
    assert as_anna.get(f"{PATH}/{asked_about['id']}").json()["status"] == "queued"
    preflights.clear(ctx)
    assert jobs_left(ctx) == (1, {asked_about["name"]})
    assert list(ctx.live.asked_for) == [asked_about["id"]]


def test_one_that_runs_and_is_forgotten_is_told_to_stop_and_goes_when_its_agent_has(ctx, app, as_anna, spec):
    begun = as_anna.post(PATH, spec.model_dump()).json()
    ctx.db.write(lambda s: s.execute(update(Job).where(Job.id == begun["id"]).values(state="starting")))
    ctx.live.asked_for[begun["id"]] -= 121
    preflights.clear(ctx)
    assert jobs_left(ctx)[0] == 1
    with ctx.db.read() as session:
        assert session.get_one(Job, begun["id"]).stop_requested_at is not None
    ended(ctx, app, begun["id"], {})
    preflights.see_off(ctx)
    assert jobs_left(ctx)[0] == 0


def test_it_is_advised_for_several_nodes_and_for_long_jobs(ctx, as_anna, spec):
    def advised(**changes):
        asked = JobSpec(name="a", entry=["train.py"], source_id="x").model_copy(update=changes)
        return as_anna.post(f"{PATH}/advice", asked.model_dump()).json()

    assert advised() == {"wanted": False, "why": ""}
    assert advised(min_nodes=1, max_nodes=3)["why"] == "it is to run on more than one node"
    assert advised(time_limit_s=3601)["why"] == "it may run for more than 1 h"
    assert advised(expected_s=7200)["wanted"] and not advised(time_limit_s=3600)["wanted"]
    assert not advised(max_nodes=2, entry=["run.sh"])["wanted"]
    ctx.settings = type(ctx.settings)(preflight_after_h=0.0)
    assert not advised(max_nodes=2)["wanted"]


def test_a_quote_rests_on_what_its_steps_took(ctx, app, anna, as_anna, spec):
    begun = as_anna.post(PATH, spec.model_dump()).json()
    ended(ctx, app, begun["id"], {"complete": True, "steps": 4, "facts": FACTS, "findings": []})
    ask = QuoteRequest(entry=spec.entry, min_nodes=1, max_nodes=1, accels=1, job=begun["id"])
    found = quotes.quote(ctx, anna.access(), ask)
    first = found.rows[0]
    assert (first.basis, found.steps) == ("scaled", 1000) and first.low_s == pytest.approx(503, abs=1)
    assert found.rows[1].basis == "bound" and found.rows[1].low_s == pytest.approx(503 / 2, abs=1)
    assert quotes.quote(ctx, anna.access(), ask.model_copy(update={"job": None})).rows == []


def test_the_page_of_a_job_and_the_form_show_what_was_found(browser, ctx, app, as_anna, spec):
    begun = as_anna.post(PATH, spec.model_dump()).json()
    waiting = browser.get(f"/w/default/jobs/new/preflight/{begun['id']}").text
    assert "being tried" in waiting and "every 1s" in waiting
    ended(ctx, app, begun["id"], {"complete": True, "findings": [FINDING | {"severity": "warning"}]})
    as_anna.post(f"/workspaces/default/jobs?preflight={begun['id']}", spec.model_dump())
    page = browser.get("/w/default/jobs/big").text
    assert "<h2>Preflight</h2>" in page and "Labels go from 1 to 4." in page
    again = as_anna.post(PATH, spec.model_dump()).json()
    ended(ctx, app, again["id"], {"complete": True, "findings": [FINDING]})
    assert "Labels go from 1 to 4." in browser.get(f"/w/default/jobs/new/preflight/{again['id']}").text
    assert jobs_left(ctx)[1] == {"big"}
    form = browser.get(f"/w/default/jobs/new?from={as_anna.get('/workspaces/default/jobs/big').json()['id']}").text
    assert "Try its first steps</button>" in form and "as it is to run on more than one node." in form
