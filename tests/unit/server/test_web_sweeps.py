"""The pages of sweeps: all trials a page at a time, charts thinned, the command, what one can do; and the form for a new one."""

import shlex
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web_browser import Browser
from web_drafts import HTMX, form_of
from web_run import Run
from web_sweeps import SPACE, add_sweep, spec_of

from shoal.core.jobs import JobSpec
from shoal.core.people import Role
from shoal.core.sweeps import Choice, SweepSpec
from shoal.server.jobs import service as jobs
from shoal.server.sweeps import service as sweeps
from shoal.server.web import sweeps as web
from shoal.server.web.command import sweep_command
from shoal.testing.server import add_member, add_source

NEW = "/w/default/sweeps/new"
LOOK = "/w/default/sweeps/look"


def typed(source_id="", **given):
    """Return the fields that a browser sends for the form."""
    rows = {"param_name": ["lr"], "param_values": ["1e-4,3e-4,1e-3"]}
    return (
        {"name": "s", "source_id": source_id, "entry": "train.py", "metric": "eval/loss", "parallel": "1"}
        | rows
        | given
    )


def told(browser, **given):
    """Return the texts beside the fields, and the whole preview."""
    answer = browser.request("POST", f"{NEW}/preview.json", **sent(typed(**given)))
    assert answer.status_code == 200, answer.text
    preview = answer.json()["preview"]
    return {said["field"]: said["text"] for said in preview["told"]}, preview


def sent(form):
    from urllib.parse import urlencode

    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://127.0.0.1:8000"}
    return {"headers": headers, "content": urlencode(form, doseq=True)}


def test_the_page_tells_how_it_goes_and_how_to_run_it_again(browser, ctx, anna):
    ident = add_sweep(ctx, anna)
    page = browser.get(LOOK)
    assert page.status_code == 200
    data = browser.get(f"{LOOK}.json").json()
    best = data["sweep"]["best"]
    assert f"trial {best['number']}" in page.text and "Best eval/loss" in page.text
    assert [share["state"] for share in data["shares"]] == ["done", "pruned", "reused", "skipped", "failed"]
    assert sum(share["count"] for share in data["shares"]) == 24 == data["ended"]
    assert data["rerun"].startswith(
        "shoal sweep run look-again --param lr=1e-05:0.1:log --param hidden=64,128,256,512 "
    )
    assert data["rerun"].endswith("-- train.py --epochs 3")
    assert "Run failed again" in page.text and "Stop" not in page.text
    assert f"{LOOK}?order=result" in page.text
    listing = browser.get("/w/default/sweeps")
    assert "look" in listing.text and ident in listing.text and "24 of 24" in listing.text


def test_the_charts_get_every_trial_in_columns(browser, ctx, anna):
    add_sweep(ctx, anna)
    points = browser.get(f"{LOOK}.json").json()["points"]
    assert points["total"] == 24 == len(points["number"]) == len(points["params"]["lr"])
    assert list(points["params"]) == list(SPACE)
    at = points["number"].index(5)
    assert (points["state"][at], points["result"][at]) == ("failed", None)
    values = [value for _, value in points["best"]]
    assert values == sorted(values, reverse=True) and values[-1] == min(r for r in points["result"] if r is not None)


def test_trials_are_paged_and_sorted_and_each_is_shown_once(browser, ctx, anna):
    add_sweep(ctx, anna, trials=120)
    for order in ("number", "result"):
        seen, after = [], None
        while True:
            query = f"?order={order}" + (f"&after={after}" if after is not None else "")
            data = browser.get(f"{LOOK}.json{query}").json()
            seen += data["trials"]
            after = data["next"]
            if after is None:
                break
        assert sorted(t["number"] for t in seen) == list(range(120)), order
        results = [t["result"] for t in seen if t["result"] is not None]
        assert (results == sorted(results)) == (order == "result")
    part = browser.get(f"{LOOK}?part=trials&order=result", headers=HTMX).text
    assert "<html" not in part and part.count("data-trial=") == 50 and "after=" in part
    assert browser.get(f"{LOOK}?order=nonsense").status_code == 422


def test_ten_thousand_trials_make_no_page_slow_or_large(browser, ctx, anna):
    add_sweep(ctx, anna, trials=10_000)
    for path, most in (
        (LOOK, 120_000),
        (f"{LOOK}?part=trials", 60_000),
        (f"{LOOK}.json", 260_000),
        ("/w/default/sweeps", 30_000),
    ):
        browser.get(path)  # what it is judged by is imported, and kept
        started = time.process_time()
        answer = browser.get(path, headers=HTMX if "part" in path else None)
        assert answer.status_code == 200 and len(answer.content) < most, (path, len(answer.content))
        assert time.process_time() - started < 0.8, path  # 0.1 s as a rule
    points = browser.get(f"{LOOK}.json").json()["points"]
    assert (points["total"], len(points["number"])) == (10_000, web.MOST_POINTS)
    best = [t["number"] for t in browser.get(f"{LOOK}.json?order=result").json()["trials"]]
    assert set(best) <= set(points["number"])


@given(
    st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=60), st.sampled_from(["min", "max"])
)
def test_thinning_keeps_the_best_and_the_order(results, direction):
    many = [(number, "done", result, None) for number, result in enumerate(results * 30)]
    kept = web.thin(many, direction)
    assert len(kept) == min(len(many), web.MOST_POINTS)
    assert [row[0] for row in kept] == sorted({row[0] for row in kept})
    known = [row[2] for row in many if row[2] is not None]
    if known:
        assert (min if direction == "min" else max)(known) in {row[2] for row in kept}


def test_the_command_is_one_the_command_line_understands(monkeypatch):
    from shoal.cli.main import app
    from shoal.cli.shared.session import session
    from shoal.cli.sweep import run as _sweep_run

    monkeypatch.setattr(session, "after_dashes", None)  # of a command in another test
    caught = []

    def check(name, entry, wanted, choice, command):
        return JobSpec(name=name, source_id="src_x", entry=list(entry), **wanted)

    monkeypatch.setattr(_sweep_run, "_preview", lambda spec, _entry: caught.append(spec))
    monkeypatch.setattr(_sweep_run, "check_job", check)
    space = SPACE | {
        "a": Choice(values=["x,y", "1", 1, True, None, [3, 4]], group="g"),
        "b": Choice(values=[1.5] * 6, group="g"),
    }
    spec = spec_of("src_x", "full", space=space, search="asha", metric="val/acc", direction="max", trials=9, parallel=3, seed=4,
                   first_rung=2, factor=4, budget="2h")  # fmt: skip
    usual = [n for n, f in SweepSpec.model_fields.items() if getattr(spec, n) == f.get_default()]
    assert usual == [], "a setting that the test of the command does not set"
    words = shlex.split(sweep_command(spec, workspace="default", source={"kind": "archive", "path": "my code.zip"}))
    with pytest.raises(SystemExit) as ended:
        app([*words[1:4], "--dry-run", *words[4:]])
    assert ended.value.code in (0, None) and caught == [spec]


def test_a_running_sweep_is_stopped_and_one_that_ended_goes_on_or_is_deleted(browser, ctx, anna):
    ident = add_sweep(ctx, anna, state="running")
    page = browser.get(LOOK)
    assert ">Stop<" in page.text and "to come 2" in page.text and "Delete" not in page.text
    refused = browser.post(f"{LOOK}/delete", headers=HTMX)
    assert refused.status_code == 409
    stopped = browser.post(f"{LOOK}/stop", headers=HTMX)
    assert stopped.status_code == 204 and "Stopping look" in stopped.headers["hx-trigger"]
    assert "stopping…" in browser.get(f"{LOOK}?part=head", headers=HTMX).text
    sweeps_of = sweeps.get(ctx, anna.access(), ident)
    assert sweeps_of.stop_requested
    add_sweep(ctx, anna, "over")
    assert browser.post("/w/default/sweeps/over/rerun", {"failed": "1"}).headers["location"] == "/w/default/sweeps/over"
    assert sweeps.get(ctx, anna.access(), "over").status == "running"
    add_sweep(ctx, anna, "gone")
    assert browser.post("/w/default/sweeps/gone/delete", {"then": "list"}).headers["location"] == "/w/default/sweeps"
    assert browser.get("/w/default/sweeps/gone").status_code == 404


def test_deleting_a_sweep_keeps_its_jobs_unless_told_otherwise(browser, ctx, anna):
    for name, form in (("kept", {}), ("also", {"jobs": "1"})):
        run = Run(ctx, anna, f"job-{name}").become("starting", "running", "succeeded")
        add_sweep(ctx, anna, name, trials=1, job_id=run.id)
        assert browser.post(f"/w/default/sweeps/{name}/delete", form).status_code == 303
    left = jobs.list_jobs(ctx, anna.access(), status=None, search=None, before=None, limit=9)
    assert [job.name for job in left] == ["job-kept"]


def test_a_viewer_looks_and_changes_nothing(app, ctx, anna, berta):
    add_sweep(ctx, anna)
    add_member(ctx, anna.workspace_id, berta, Role.VIEWER)
    hers = Browser(app).enter(ctx, berta)
    base = f"/w/{anna.workspace_id}/sweeps"
    page = hers.get(f"{base}/look")
    assert page.status_code == 200 and "Delete" not in page.text and "Run failed again" not in page.text
    assert hers.post(f"{base}/look/rerun").status_code == 403
    assert hers.get(f"{base}/new").status_code == 403


def test_each_field_says_how_it_is_understood(browser):
    said, preview = told(browser)
    assert said == {"param.0": "3 values"} and preview["trials"] == "3 trials"
    assert preview["command"] == "shoal sweep run s --param lr=0.0001,0.0003,0.001 -- train.py"
    rows = {
        "param_name": ["lr", "", "hidden", "act", "lr", "x", ""],
        "param_values": ["1e-5:1e-2:log", "", "64:512", "relu,gelu", "1", "", "7"],
    }
    said, preview = told(browser, **rows, search="tpe", trials="30")
    assert said["param.0"] == "numbers from 1e-05 to 0.01, on a log scale"
    assert said["param.2"] == "whole numbers from 64 to 512" and said["param.3"] == "2 words"
    assert said["param.4"] == "lr is given twice." and said["param.5"].startswith("Give its values")
    assert said["param.6"].startswith("Give it a name") and "param.1" not in said
    assert (preview["trials"], preview["command"]) == ("30 trials", None)
    said, preview = told(browser, param_name=["h"], param_values=["1:9"])
    assert said["param.0"].startswith("A grid needs single values") and preview["trials"] == ""
    said, _ = told(browser, search="asha")
    assert said["trials"].startswith("Search by asha needs a number of trials")
    said, _ = told(browser, trials="0", parallel="many", metric="")
    assert said["trials"] == "'0' is not a number from 1 to 100,000." and "'many' is not a number" in said["parallel"]
    assert said["metric"].startswith("Enter the metric")
    said, preview = told(browser, param_name=["a@g", "b@g"], param_values=["1,2", "3,4"])
    assert preview["trials"] == "2 trials" and "--param a@g=1,2" in preview["command"]
    _, preview = told(browser, line="--lr 1")
    assert "--lr is among the arguments too" in preview["notes"][0]


def test_the_preview_is_put_beside_the_fields_by_their_place(browser):
    part = browser.post(f"{NEW}/preview", typed(param_values=["<b>"]), headers=HTMX).text
    assert '<li data-field="param.0">1 word</li>' in part and "<html" not in part


def test_the_form_begins_from_what_a_job_ran_and_logged(browser, ctx, anna):
    env = {"SHOAL_PARAMS": '{"lr": 0.1}', "SEED": "1"}  # it was a trial
    run = Run(ctx, anna, "first", entry=["train.py", "--lr", "0.1", "--fp16"], env=env)
    run.steps(0, 3, **{"train/loss": lambda i: 1.0 / (i + 1)})
    run.send("metric", {"k": "e", "i": 2, "v": {"accuracy": 0.5, "note": "text"}})
    page = browser.get(f"{NEW}?job=first")
    form = form_of(page.text)
    assert (form["name"], form["metric"], form["direction"]) == (["first-sweep"], ["accuracy"], ["max"])
    assert form["arg_name"] == ["--lr", "--fp16"] and "data-sweep-row" in page.text
    assert form["env_name"] == ["SEED"]
    assert (
        '<option value="train/loss">' in page.text
        and f"{NEW}?job={run.id}" in browser.get("/w/default/jobs/first").text
    )
    form |= {"param_name": ["lr"], "param_values": ["0.1,0.2"]}
    assert browser.post(NEW, form).headers["location"] == "/w/default/sweeps/first-sweep"
    made = sweeps.get(ctx, anna.access(), "first-sweep")
    assert (made.metric, made.direction, made.trials) == ("accuracy", "max", 2)
    assert made.spec.space == {"lr": Choice(values=[0.1, 0.2])} and made.spec.job.entry == [
        "train.py",
        "--lr",
        "0.1",
        "--fp16",
    ]


def test_a_sweep_is_run_again_with_everything_as_it_was(browser, ctx, anna):
    ident = add_sweep(ctx, anna, search="asha", seed=3, first_rung=2, factor=4, direction="max")
    form = form_of(browser.get(f"{NEW}?from={ident}").text)
    assert browser.post(NEW, form).headers["location"] == "/w/default/sweeps/look-2"
    old, new = (sweeps.get(ctx, anna.access(), name).spec for name in ("look", "look-2"))
    assert new.model_copy(update={"name": "look", "job": old.job}) == old
    assert new.job.model_copy(update={"name": "look"}) == old.job


def test_a_refused_form_comes_back_with_all_that_was_typed(browser, ctx, anna):
    add_sweep(ctx, anna)
    source = add_source(ctx, anna)
    form = typed(source, name="look", search="random", trials="7", seed="5", line="--x 1")
    refused = browser.post(NEW, form)
    assert refused.status_code == 409 and "already a sweep &#39;look&#39;" in refused.text
    again = form_of(refused.text)
    for name, value in form.items():
        assert again[name] == (value if isinstance(value, list) else [value]), name
    assert browser.post(NEW, again | {"name": ["free"]}).headers["location"] == "/w/default/sweeps/free"
    wrong = browser.post(NEW, form | {"param_values": ["5:1"]}, headers=HTMX)
    assert wrong.status_code == 422 and "smaller" in wrong.json()["error"]["message"]
    nothing = browser.post(NEW, typed(source, name="none", param_name=[], param_values=[]), headers=HTMX)
    assert "Name a parameter" in nothing.json()["error"]["message"]
    assert (
        browser.post(NEW, typed("", name="none"), headers=HTMX)
        .json()["error"]["message"]
        .startswith("Provide the code")
    )


def test_a_draft_left_behind_or_a_new_jobs_is_put_into_the_form(browser, ctx, anna):
    source = add_source(ctx, anna)
    restored = browser.post(f"{NEW}/restore", typed(source, name="later"), headers=HTMX).text
    assert "<html" not in restored and 'value="1e-4,3e-4,1e-3"' in restored
    of_a_job = {"name": "mine", "source_id": source, "entry": "train.py", "line": "--lr 3", "accels": "2"}
    form = form_of(browser.post(f"{NEW}/restore", of_a_job | {"param_name": "", "param_values": ""}, headers=HTMX).text)
    assert (form["name"], form["line"], form["accels"], form["metric"]) == (["mine"], ["--lr 3"], ["2"], ["eval/loss"])
    assert form["param_name"] == [""] and form["entry"] == ["train.py"]


def test_a_trials_job_leads_to_its_sweep_and_is_cloned_without_it(browser, ctx, anna):
    add_sweep(ctx, anna)
    env = {"SHOAL_SWEEP": "look", "SHOAL_TRIAL": "3", "SHOAL_PARAMS": "{}"}
    Run(ctx, anna, "look-3", env=env, batch="look")
    page = browser.get("/w/default/jobs/look-3")
    assert 'trial <b>3</b> of <a href="/w/default/sweeps/look">look</a>' in page.text
    assert "--env SHOAL_SWEEP" not in browser.get("/w/default/jobs/look-3.json").json()["rerun"]
    form = form_of(browser.get("/w/default/jobs/new?from=look-3").text)
    assert form["env_name"] == ["SHOAL_PARAMS"] and form["batch"] == [""]
