"""Several jobs side by side: what differs, who did best, and what to do when there is little to compare."""

import pytest
from web_browser import Browser
from web_run import Run

from shoal.core.people import SecretSet
from shoal.core.run_params import arguments
from shoal.server.people import secrets
from shoal.server.web.job.compare import MOST_JOBS, better

XSS = "<script>alert(1)</script>"


def look(browser, jobs, query=""):
    answer = browser.get(f"/w/default/compare.json?jobs={jobs}{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def differing(found):
    return {(s["section"], s["name"]): s["values"] for s in found["settings"] if s["differs"]}


def test_only_what_differs_is_told_over_arguments_variables_config_and_code(browser, ctx, anna):
    one = Run(ctx, anna, "one", entry=["train.py", "--lr", "0.1", "--fast"], env={"A": "1", "B": "2"}, accels=1)
    two = Run(
        ctx, anna, "two", entry=["train.py", "--lr=0.2"], env={"A": "1"}, accels=2,
        files={"train.py": b"print(2)\n", "extra.py": b"1\n"},
    )  # fmt: skip
    one.config(width=64, opt={"name": "adam", "eps": 1e-8})
    two.config(width=128, opt={"name": "adam", "eps": 1e-8})
    found = look(browser, "one,two")
    told = differing(found)
    assert told[("Arguments", "--lr")] == ["0.1", "0.2"]
    assert told[("Arguments", "--fast")] == ["", None]
    assert told[("Variables", "B")] == ["2", None]
    assert told[("Config", "width")] == ["64", "128"]
    assert told[("Job", "Slots per node")] == ["1", "2"]
    assert told[("Code", "extra.py")][0] is None and told[("Code", "train.py")][0] != told[("Code", "train.py")][1]
    assert ("Config", "opt.name") not in told and ("Variables", "A") not in told and ("Job", "Nodes") not in told
    page = browser.get("/w/default/compare?jobs=one,two").text
    assert "opt.name" not in page and "--lr" in page
    assert "opt.name" in browser.get("/w/default/compare?jobs=one,two&all=1").text


def test_the_best_value_is_marked_by_what_the_metric_is(browser, ctx, anna):
    Run(ctx, anna, "one").steps(0, 3, loss=lambda i: [3, 1, 2][i], accuracy=lambda i: [0.1, 0.9, 0.5][i])
    Run(ctx, anna, "two").steps(0, 3, loss=lambda i: [3, 2, 1.5][i], accuracy=lambda i: 0.95, only=lambda i: i)
    rows = {m["name"]: m for m in look(browser, "one,two")["metrics"]}
    assert [c["is_best"] for c in rows["loss"]["cells"]] == [True, False]
    assert [c["best"] for c in rows["loss"]["cells"]] == [1.0, 1.5]
    assert [c["last"] for c in rows["loss"]["cells"]] == [2.0, 1.5]
    assert rows["accuracy"]["better"] == "highest"
    assert [c["is_best"] for c in rows["accuracy"]["cells"]] == [False, True]
    assert rows["only"]["cells"][0] is None and not rows["only"]["cells"][1]["is_best"]


def test_jobs_without_metrics_or_equal_in_all_are_compared_too(browser, ctx, anna):
    Run(ctx, anna, "one")
    Run(ctx, anna, "two")
    found = look(browser, "one,two")
    assert found["metrics"] == [] and differing(found) == {}
    assert "are the same in all of them" in browser.get("/w/default/compare?jobs=one,two").text


def test_a_job_deleted_meanwhile_is_named_and_the_others_are_shown(browser, ctx, anna):
    Run(ctx, anna, "one")
    Run(ctx, anna, "two")
    found = look(browser, "one,gone,two")
    assert [j["name"] for j in found["jobs"]] == ["one", "two"]
    assert "no job &#39;gone&#39;" in browser.get("/w/default/compare?jobs=one,gone,two").text


def test_the_same_job_counts_once_and_too_many_are_left_out(browser, ctx, anna):
    runs = [Run(ctx, anna, f"j{n}") for n in range(MOST_JOBS + 2)]
    assert len(look(browser, f"j0,{runs[0].id},j0")["jobs"]) == 1
    found = look(browser, ",".join(r.name for r in runs))
    assert (
        len(found["jobs"]) == MOST_JOBS and f"2 more are left out: j{MOST_JOBS}, j{MOST_JOBS + 1}." in found["notes"][0]
    )


def test_the_forms_own_way_of_naming_jobs_works_without_scripts(browser, ctx, anna):
    a, b = Run(ctx, anna, "one"), Run(ctx, anna, "two")
    answer = browser.get(f"/w/default/compare.json?job={a.id}&job={b.id}")
    assert [j["name"] for j in answer.json()["jobs"]] == ["one", "two"]
    listing = browser.get("/w/default/jobs").text
    assert f'form="compare" name="job" value="{a.id}"' in listing and 'id="compare"' in listing


@pytest.mark.parametrize("query", ["", "?jobs=", "?jobs=,,", "?jobs=nope"])
def test_with_nothing_to_compare_the_page_says_what_to_do(browser, query):
    page = browser.get(f"/w/default/compare{query}")
    assert page.status_code == 200 and "Choose two jobs or more" in page.text


def test_hostile_names_and_values_stay_text_and_secrets_hidden(browser, ctx, anna):
    secrets.set_secret(ctx, anna.access(), SecretSet(name="k", value="planted-secret-value"))
    Run(ctx, anna, "one", entry=["train.py", XSS, "--token", "t0p-t0ken"], env={"X": XSS}).config(**{XSS: XSS}).send(
        "metric", {"k": "e", "i": 1, "v": {XSS: XSS}}
    )
    Run(ctx, anna, "two", env={"X": "planted-secret-value"})
    page = browser.get("/w/default/compare?jobs=one,two&all=1").text
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert "planted-secret-value" not in page and "t0p-t0ken" not in page


def test_another_persons_jobs_are_not_told_of(app, ctx, anna, berta):
    run = Run(ctx, anna, "private-thing")
    stranger = Browser(app).enter(ctx, berta)
    found = stranger.get(f"/w/default/compare.json?jobs={run.id}").json()
    assert found["jobs"] == [] and "private-thing" not in str(found)
    assert stranger.get(f"/w/{anna.workspace_id}/compare?jobs={run.id}").status_code == 404


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--a", "1", "--b=2", "-v", "--c", "-3", "x"], {"--a": "1", "--b": "2", "-v": "", "--c": "-3 x"}),
        (["pos", "--a"], {"#1": "pos", "--a": ""}),
        (["--x=", "y"], {"--x": "", "#1": "y"}),
        ([], {}),
    ],
)
def test_arguments_are_told_apart(words, told):
    assert arguments(words) == told


@pytest.mark.parametrize(
    ("end", "names"),
    [
        ("highest", ["accuracy", "eval/acc", "val_f1", "tokens_per_second", "mean_reward", "top1.acc"]),
        ("lowest", ["loss", "eval/loss", "acc_loss", "perplexity", "mapping", "step_time", "fid"]),
        (None, ["lr", "train/lr", "grad_norm", "learning_rate", "epoch", "optim.weight_decay"]),
    ],
)
def test_which_end_is_better_is_guessed_from_the_name(end, names):
    assert {name: better(name) for name in names} == dict.fromkeys(names, end)


def test_of_a_metric_without_a_better_end_the_range_is_told(browser, ctx, anna):
    for name in ("one", "two"):
        Run(ctx, anna, name).steps(0, 3, lr=lambda i: i / 10)
    row = look(browser, "one,two")["metrics"][0]
    assert row["better"] is None and not any(c["is_best"] for c in row["cells"])
    assert "0 to 0.2" in browser.get("/w/default/compare?jobs=one,two").text
