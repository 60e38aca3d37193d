"""The panel of a step that failed: what is known of it, however odd its capsule, and the command that replays it."""

import html
import json
import re

import pytest
from web_run import Run, put

from shoal.core.artifacts import Manifest
from shoal.core.bugs import BugCommit
from shoal.server.jobs import bug_capsules
from shoal.server.jobs import service as jobs
from shoal.server.web.job.history import without_reason

XSS = "<script>alert(1)</script>"
ABOUT = {
    "error": {
        "type": "ValueError",
        "message": XSS,
        "traceback": f"Traceback (most recent call last):\n  {XSS}\nValueError",
    },
    "locals": {"x": "tensor 4 × 3", XSS: XSS},
    "versions": {"python": "3.11.2", "torch": "2.6.0"},
    "batch": [{"path": "0.x", "shape": [4, 3], "dtype": "float32", "min": -1.0, "max": 2.5, "non_finite": 2}, "odd"],
    "non_finite": ["layer.weight"],
}


def fail(run, step, about=None, *, n=0):
    manifest = None
    if about is not None:
        data = about if isinstance(about, bytes) else json.dumps(about).encode()
        manifest = Manifest(
            files=[put(run.ctx, run.person, "batch.pt", b"\0weights"), put(run.ctx, run.person, "capsule.json", data)]
        )
    request = BugCommit(
        rank=0, n=n, t=1000.0, step=step, seen=40, name=f"step-{step:09d}-rank-0", error="ValueError", message=XSS,
        where="train.py:12 in train_batch", manifest=manifest,
    )  # fmt: skip
    return bug_capsules.commit(run.ctx, run.who, request)


def test_a_job_without_one_shows_no_panel(browser, ctx, anna):
    Run(ctx, anna)
    assert "failed</h2>" not in browser.get("/w/default/jobs/a-job").text
    assert browser.get("/w/default/jobs/a-job.json").json()["failure"] is None


def test_exception_step_traceback_and_the_command_are_shown(browser, ctx, anna):
    run = Run(ctx, anna)
    assert not fail(run, 12, ABOUT).missing
    page = browser.get("/w/default/jobs/a-job").text
    for part in ("Step 12 failed", "ValueError", "train.py:12 in train_batch", "shoal training replay a-job", "2.6.0"):
        assert part in page, part
    assert "<script>alert" not in page and "Traceback (most recent call last)" in page
    failure = browser.get("/w/default/jobs/a-job.json").json()["failure"]
    assert failure["batch"][0] == "0.x: 4 × 3 float32, -1 to 2.5, 2 not finite"
    assert dict(failure["files"])["batch.pt"] == 8 and failure["not_finite"] == ["layer.weight"]


def test_until_the_capsule_has_come_the_panel_says_so(browser, ctx, anna):
    run = Run(ctx, anna)
    fail(run, 3)
    page = browser.get("/w/default/jobs/a-job").text
    assert "Step 3 failed" in page and "still being uploaded" in page


def test_of_several_the_newest_is_shown_and_named_in_the_command(browser, ctx, anna):
    run = Run(ctx, anna)
    fail(run, 3, ABOUT, n=0)
    fail(run, 9, ABOUT, n=1)
    failure = browser.get("/w/default/jobs/a-job.json").json()["failure"]
    assert failure["bug"]["step"] == 9 and failure["replay"].endswith("replay a-job --step 9")
    assert [b["step"] for b in failure["others"]] == [3]


@pytest.mark.parametrize(
    "about",
    [
        b"",
        b"nonsense",
        b"[]",
        b"[" * 100_000,
        {"error": 3, "locals": [], "batch": {}, "versions": None},
        b'{"error": {"traceback": 5}}',
    ],
)
def test_a_capsule_that_cannot_be_understood_breaks_nothing(browser, ctx, anna, about):
    fail(Run(ctx, anna), 1, about)
    answer = browser.get("/w/default/jobs/a-job")
    assert answer.status_code == 200 and "Step 1 failed" in answer.text


REASON = "rank 0 on node 0: KeyError: 'label'"
LOG = [
    "step 3",
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in batch',
    "    row['label']",
    "KeyError: 'text'",
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    "Traceback (most recent call last):",
    '  File "train.py", line 9, in <module>',
    "    raise KeyError('label')",
    "KeyError: 'label'",
    "and this line is no part of it",
]


def test_a_failed_jobs_page_has_the_traceback_first_and_its_sentence_once(browser, ctx, anna):
    run = Run(ctx, anna)
    run.log(*LOG)
    run.become("starting", "running", "failed", reason=REASON)
    page = browser.get("/w/default/jobs/a-job").text
    trace = re.search(r'<pre class="trace"[^>]*>(.*?)</pre>', page, re.DOTALL)
    text = re.sub(r"</?a\b[^>]*>", "", trace.group(1))
    assert html.unescape(text).splitlines() == LOG[1:12]
    assert html.unescape(page).count(REASON) == 1
    assert page.index("<pre") < page.index("Attempts</h2>") < page.index("Events</h2>")


def test_a_job_that_runs_or_failed_without_one_shows_no_traceback(browser, ctx, anna):
    run = Run(ctx, anna)
    run.log(*LOG)
    run.become("starting", "running")
    assert '<pre class="trace"' not in browser.get("/w/default/jobs/a-job").text
    other = Run(ctx, anna, "other").log("killed")
    other.become("starting", "running", "failed", reason="exit code 137")
    assert '<pre class="trace"' not in browser.get("/w/default/jobs/other").text


def test_what_else_the_history_says_stays(ctx, anna):
    run = Run(ctx, anna)
    run.become("starting", "running", "failed", reason=REASON)
    job = jobs.get(ctx, anna.access(), run.id)
    assert without_reason(job, f"{REASON} (the same error again)") == "the same error again"
    assert without_reason(job, "KeyError: 'label'") == ""
    assert without_reason(job, "submitted by anna") == "submitted by anna"
    running = job.model_copy(update={"status": "running"})
    assert without_reason(running, REASON) == REASON
