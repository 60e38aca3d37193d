"""A shared run: one file with all that is worth showing, nothing that is secret, and no script but its own."""

import base64
import hashlib
import json
import re

import pytest
from test_web_pages import tags_of
from web_browser import Browser
from web_run import PNG, Run

from shoal.core.people import SecretSet
from shoal.server.people import secrets
from shoal.server.web.job.share import LOG_LINES, MANY_POINTS, SMOOTHING

XSS = "</script><script>alert(1)</script>"
SHARE = "/api/v1/workspaces/default/jobs/a-job/share"


def shared(browser, path=SHARE):
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    return answer


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_charts_config_code_log_pictures_and_summary_are_in_it(browser, ctx, anna):
    run = Run(ctx, anna, entry=["train.py", "--lr", "3"], env={"MODE": "fast"})
    run.config(width=64).steps(0, 50, loss=lambda i: 1 / (i + 1)).log("first line", "\x1b[32mlast line\x1b[0m")
    run.environment("3.11.2", torch="2.6.0").show("samples", PNG, step=40)
    run.become("starting", "running", "succeeded")
    answer = shared(browser)
    assert answer.headers["content-disposition"].startswith('attachment; filename="a-job.html"')
    page, data = answer.text, data_of(answer.text)
    assert len(data["metrics"]["loss"]) == 50
    assert [line[3] for line in data["log"]] == ["first line", "\x1b[32mlast line\x1b[0m"]
    for part in ("width", "MODE=fast", "torch==2.6.0", "succeeded", "print", "--lr 3", base64.b64encode(PNG).decode()):
        assert part in page, part


def test_nothing_but_its_own_script_may_run_and_nothing_is_loaded(browser, ctx, anna):
    Run(ctx, anna).log("x")
    page = shared(browser).text
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)[1].replace("&#39;", "'")
    script, style = (
        re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1],
        re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1],
    )
    for kind, text in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy
    for tag, attributes in tags_of(page):
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/")), (tag, attributes)
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)


def test_hostile_text_stays_text_in_every_part(browser, ctx, anna):
    files = {"train.py": f"# {XSS}\n".encode(), "notes.txt": f"{XSS} <!-- x".encode()}
    run = Run(ctx, anna, files=files, entry=["train.py", XSS], env={"X": XSS})
    run.config(**{XSS: XSS}).steps(0, 2, **{XSS: lambda i: i}).log(f"{XSS} <!-- <script>").show(XSS, PNG)
    run.become("starting", "running", "failed", reason=XSS)
    page = shared(browser).text
    assert "<script>alert" not in page and page.count("</script>") == 2
    assert data_of(page)["log"][0][3] == f"{XSS} <!-- <script>"


def test_secrets_people_and_paths_stay_behind(browser, ctx, anna):
    secrets.set_secret(ctx, anna.access(), SecretSet(name="hub", value="planted-secret-value"))
    run = Run(
        ctx, anna, entry=["train.py", "--password", "pw-planted", "planted-secret-value"],
        env={"HF_TOKEN": "hf-planted", "PLAIN": "planted-secret-value"}, secrets={"HUB_TOKEN": "hub"},
        files={"train.py": b"key = 'planted-secret-value'\n", "planted-secret-value.py": b"1\n"},
        origin={"kind": "folder", "path": "/srv/anna/project", "url": "https://anna:pw-planted@git.example.org/x"},
    )  # fmt: skip
    run.config(api_key="ak-planted", note="planted-secret-value").log("token planted-secret-value")
    run.steps(0, 1, **{"planted-secret-value": lambda i: i}).show("planted-secret-value", PNG)
    run.become("starting", "running", "failed", reason="bad planted-secret-value")
    page = shared(browser).text
    for planted in ("planted-secret-value", "pw-planted", "hf-planted", "ak-planted", "/srv/anna", "anna@example.org"):
        assert planted not in page, planted
    assert "HUB_TOKEN" in page and "git.example.org" in page


def test_a_long_run_is_thinned_and_keeps_its_peaks(browser, ctx, anna):
    run = Run(ctx, anna).steps(0, 20_000, loss=lambda i: 1000.0 if i == 12_345 else 1.0)
    run.log(*(f"line {n}" for n in range(2000)))
    answer = shared(browser)
    data = data_of(answer.text)
    assert len(data["metrics"]["loss"]) <= MANY_POINTS + 4 and [12_345, 1000.0] in data["metrics"]["loss"]
    assert len(data["log"]) == LOG_LINES and data["log"][-1][3] == "line 1999"
    assert len(answer.content) < 400_000
    smooth = data["smoothed"]["loss"]
    assert len(smooth["levels"]) == len(SMOOTHING) and all(len(v) == len(smooth["x"]) for v in smooth["levels"])
    # The peak is one point in 20,000: no smoothing may draw the middle between it and the rest.
    assert max(smooth["levels"][-1]) < 10 and smooth["levels"][-1][-1] == pytest.approx(1.0, abs=0.2)


def test_files_that_are_not_text_or_too_large_are_named_only(browser, ctx, anna):
    Run(ctx, anna, files={"train.py": b"1\n", "big.txt": b"x" * 100_000, "weights.bin": b"\0" * 10})
    page = shared(browser).text
    assert "big.txt" in page and "weights.bin" in page and page.count("too large to be in this file") == 2
    assert "xxxxxxxxxxxx" not in page


def test_a_job_that_has_nothing_yet_can_be_shared(browser, ctx, anna):
    Run(ctx, anna)
    assert data_of(shared(browser).text) == {"metrics": {}, "smoothed": {}, "log": []}


def test_a_failed_step_is_told_in_the_file(browser, ctx, anna):
    Run(ctx, anna).become("starting", "running", "failed", reason="ValueError: no")
    assert "ValueError: no" in shared(browser).text


def test_only_members_may_and_the_page_has_the_button(app, browser, ctx, anna, berta):
    run = Run(ctx, anna)
    assert f"/api/v1/workspaces/{anna.workspace_id}/jobs/{run.id}/share" in browser.get("/w/default/jobs/a-job").text
    assert Browser(app).get(SHARE).status_code == 401
    theirs = Browser(app).enter(ctx, berta).get(f"/api/v1/workspaces/{anna.workspace_id}/jobs/{run.id}/share")
    assert theirs.status_code == 404
    assert browser.get(SHARE.replace("a-job", "nope")).status_code == 404
