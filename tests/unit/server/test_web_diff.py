"""Two jobs against each other: on the page, over the API, without secrets, and with hostile names kept as text."""

import json

import pytest
from web_browser import Browser
from web_run import Run

from shoal.core.people import SecretSet
from shoal.server.people import secrets
from shoal.testing.server import AppClient

XSS = "<script>alert(1)</script>"


@pytest.fixture
def ask(app, anna):
    def of(first, second, status=200):
        answer = AppClient(app, anna.key).get(f"/workspaces/default/jobs/{first}/diff/{second}")
        assert answer.status_code == status, answer.text
        return answer.json()

    return of


def loss(first_different, base=1.0):
    return lambda i: base / i if i < first_different else 2 * base / i


def test_a_learning_rate_is_named_with_the_step_at_which_it_shows(ask, ctx, anna):
    for name, lr, at in (("a", "0.1", 99), ("b", "0.2", 2)):
        Run(ctx, anna, name, entry=["train.py", "--lr", lr]).steps(
            1, 10, loss=loss(at), step_time=lambda i, at=at: i * at, lr=lambda i, lr=lr: float(lr)
        )
    found = ask("a", "b")
    assert found["metric"] == {"name": "loss", "step": 2, "first": 0.5, "second": 1.0, "relative": 0.5}
    assert found["causes"][0]["what"] == "--lr: 0.1 → 0.2" and found["first_step"] == 1 and found["last_step"] == 9
    assert not found["samples_known"] and found["files"] == []


def test_code_is_compared_line_by_line_and_comments_do_not_count(ask, ctx, anna):
    before = {"train.py": b"x = 1\nprint(x)\n", "util.py": b"def f():\n    return 1  # one\n", "README.md": b"old\n"}
    after = {
        "train.py": b"x = 2\nprint(x)\n",
        "util.py": b"# the first\n\ndef f():\n  return 1\n",
        "README.md": b"new\n",
        "w.bin": b"\0\1",
    }
    Run(ctx, anna, "a", files=before).steps(1, 5, loss=loss(99))
    Run(ctx, anna, "b", files=after).steps(1, 5, loss=loss(3))
    found = ask("a", "b")
    files = {f["path"]: f for f in found["files"]}
    assert files["train.py"]["diff"].splitlines()[3:] == ["-x = 1", "+x = 2", " print(x)"]
    assert files["util.py"]["note"] == "only comments and layout" and not files["util.py"]["matters"]
    assert files["w.bin"]["kind"] == "added" and files["w.bin"]["note"] and not files["w.bin"]["diff"]
    assert not files["README.md"]["matters"]
    assert found["causes"][0]["name"] == "train.py"


def test_packages_python_and_workers_are_compared_once_both_are_known(ask, ctx, anna):
    Run(ctx, anna, "a").environment("3.11.2", torch="2.12", numpy="2.0").steps(1, 5, loss=loss(99))
    Run(ctx, anna, "b", accels=2).environment("3.11.2", torch="2.13", numpy="2.0").steps(1, 5, loss=loss(1))
    told = {(c["section"], c["name"]): (c["first"], c["second"]) for c in ask("a", "b")["changes"]}
    assert told == {("environment", "torch"): ("2.12", "2.13"), ("hardware", "workers"): ("1 × 1", "1 × 2")}
    Run(ctx, anna, "c").steps(1, 5, loss=loss(99))
    assert ask("a", "c")["changes"] == []  # nobody has told what it ran on


def test_equal_jobs_are_told_to_be_equal(ask, ctx, anna, browser):
    for name in ("a", "b"):
        Run(ctx, anna, name).steps(1, 5, loss=loss(99))
    found = ask("a", "b")
    assert found["metric"] is None and found["causes"] == [] and found["changes"] == []
    assert "the same to the bit" in browser.get("/w/default/compare?jobs=a,b&part=diff").text
    assert "does not differ from itself" in ask("a", "a", status=422)["error"]["message"]


def test_a_priority_is_told_and_blamed_for_nothing(ask, ctx, anna):
    Run(ctx, anna, "a", priority=3).steps(1, 5, loss=loss(99))
    Run(ctx, anna, "b").steps(1, 5, loss=loss(3))
    found = ask("a", "b")
    assert [(c["name"], c["matters"]) for c in found["changes"]] == [("Priority", False)]
    assert [c["name"] for c in found["causes"]] == ["chance"]


def test_where_a_resume_went_wrong_is_told(ask, ctx, anna):
    Run(ctx, anna, "whole").steps(1, 10, loss=loss(99))
    Run(ctx, anna, "broken").steps(1, 6, loss=loss(99)).attempt().steps(5, 10, loss=loss(1))
    found = ask("whole", "broken")
    assert found["metric"]["step"] == 5 and found["causes"][0]["what"] == "broken resumed from a checkpoint at step 4"


def test_the_page_shows_it_for_two_jobs_and_only_for_two(browser, ctx, anna):
    for name, lr in (("a", "0.1"), ("b", "0.2"), ("c", "0.3")):
        Run(ctx, anna, name, entry=["train.py", "--lr", lr]).steps(1, 5, loss=loss(99 if name == "a" else 2))
    assert "part=diff" in browser.get("/w/default/compare?jobs=a,b").text
    assert "part=diff" not in browser.get("/w/default/compare?jobs=a,b,c").text
    page = browser.get("/w/default/compare?jobs=a,b&part=diff")
    assert page.status_code == 200 and "loss differs from step 2 on" in page.text and "--lr: 0.1 → 0.2" in page.text
    twin = browser.get("/w/default/compare.json?jobs=a,b&part=diff").json()
    assert twin["diff"]["causes"][0]["name"] == "--lr"


def test_hostile_names_and_values_stay_text_and_secrets_hidden(ask, browser, ctx, anna):
    secrets.set_secret(ctx, anna.access(), SecretSet(name="k", value="planted-secret-value"))
    code = {"train.py": b"key = 'planted-secret-value'\n" + XSS.encode()}
    Run(ctx, anna, "a", entry=["train.py", XSS, "--token", "t0p-t0ken"], env={"API_KEY": "first-key"}).steps(
        1, 3, **{XSS: loss(1)}
    )
    Run(ctx, anna, "b", env={"X": "planted-secret-value", "API_KEY": "second-key"}, files=code).environment(
        "3", **{XSS: XSS}
    ).steps(1, 3, **{XSS: loss(99)})
    for text in (browser.get("/w/default/compare?jobs=a,b&part=diff").text, json.dumps(ask("a", "b"))):
        assert not any(word in text for word in ("planted-secret-value", "t0p-t0ken", "first-key", "second-key"))
    page = browser.get("/w/default/compare?jobs=a,b&part=diff").text
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page


def test_another_persons_job_is_not_told_of(app, ctx, anna, berta, ask):
    mine, hers = Run(ctx, anna, "mine"), Run(ctx, berta, "hers")
    assert "hers" not in json.dumps(ask(mine.id, hers.id, status=404)).replace(hers.id, "")
    stranger = Browser(app).enter(ctx, berta)
    assert stranger.get(f"/w/default/compare?jobs={hers.id},{mine.id}&part=diff").status_code == 404


def test_a_ledger_of_nonsense_is_no_ledger(ask, ctx, anna):
    Run(ctx, anna, "a").send("metric", {"k": "d", "name": "x"}, {"k": "l", "name": "x", "r": 3}).steps(
        1, 3, loss=loss(99)
    )
    Run(ctx, anna, "b").send("metric", {"k": "d", "name": "x", "x": "s", "size": "many"}).steps(1, 3, loss=loss(99))
    assert not ask("a", "b")["samples_known"]
