"""The sample job: one click on an empty page, and its script runs as it is."""

import subprocess
import sys

from shoal.core.run_params import params_of
from shoal.server.jobs import service as jobs
from shoal.server.web.drafts import sample


def test_a_click_on_an_empty_page_starts_the_sample(browser, ctx, anna):
    assert "/w/default/jobs/new/sample" in browser.get("/w/default/jobs").text
    for name in ("sample", "sample-2"):
        answer = browser.post("/w/default/jobs/new/sample")
        assert answer.status_code == 303 and answer.headers["location"] == f"/w/default/jobs/{name}"
    assert "/w/default/jobs/new/sample" not in browser.get("/w/default/jobs").text
    assert jobs.get(ctx, anna.access(), "sample").status == "queued" and params_of(["train.py"], {}) == {}


def test_its_script_is_quick_to_try_and_learns(tmp_path):
    (tmp_path / "train.py").write_text(sample.SCRIPT.replace("time.sleep(0.05)", "pass"))
    done = subprocess.run(
        [sys.executable, "train.py", "--steps", "150"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in done.stdout.splitlines() if "loss" in line]
    assert losses[-1] < 0.2 < losses[0]
