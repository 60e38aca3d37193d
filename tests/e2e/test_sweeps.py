"""A real sweep from a job's page to its best trial, watched while it runs; and a job that waits, helped by a button."""

import re
from contextlib import suppress

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")
from browser_actions import enter
from playwright.sync_api import expect

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

SCRIPT = """
import argparse, pathlib
import shoal

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
options = parser.parse_args()
if options.lr > 0.9:
    raise SystemExit("too large")
run = shoal.init(parallel="none")
for step in range(1, 4):
    run.step(loss=1 / step)
    run.evaluate({"loss": (options.lr - 0.1) ** 2 + 1 / step})
"""
HOLDS = "import time\nprint('holds', flush=True)\ntime.sleep(600)\n"
SOON = 60_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("code")
    (made / "train.py").write_text(SCRIPT)
    (made / "holds.py").write_text(HOLDS)
    return made


def test_a_sweep_is_made_from_a_job_watched_and_run_again(server, watched, folder):
    page = watched.page
    server.cli("training", "run", "first", "-f", "--", "train.py", "--lr", "0.5", cwd=folder)
    base = enter(server, page)
    page.goto(f"{base}/w/default/jobs/new?from=first")
    page.get_by_label("Name of the job").fill("other")
    page.get_by_role("button", name="Make it a sweep").click()
    expect(page.get_by_label("Name of the sweep")).to_have_value("other")
    expect(page.get_by_label("Script to run")).to_have_value("train.py")
    page.goto(f"{base}/w/default/jobs/first")
    page.get_by_role("link", name="Sweep", exact=True).click()
    expect(page.get_by_label("Name of the sweep")).to_have_value("first-sweep")
    expect(page.get_by_label("Metric to compare trials by")).to_have_value("eval/loss")
    page.get_by_role("button", name="Make this argument a parameter").click()
    values = page.get_by_label("Values of the parameter")
    expect(page.get_by_label("Name of a parameter")).to_have_value("lr")
    expect(values).to_have_value("0.5")
    values.fill("0.9:0.1")
    expect(page.locator("#param-rows .told.bad")).to_contain_text("smaller")
    values.fill("0.1,0.3,0.5,0.95")
    expect(page.locator("#param-rows .told")).to_have_text("4 values")
    expect(page.locator(".trial-count")).to_have_text("4 trials")
    page.get_by_label("At once").fill("2")
    page.get_by_text("Limits and more").click()
    page.get_by_label("Restarts after failures").fill("0")
    command = "shoal sweep run first-sweep --param lr=0.1,0.3,0.5,0.95 --parallel 2 --max-restarts 0 -- train.py"
    expect(page.locator("#preview .command code")).to_have_text(command)
    page.get_by_role("button", name="Start the sweep").click()
    expect(page).to_have_url(re.compile("/w/default/sweeps/first-sweep$"))

    head = page.locator("#sweep-head")  # none of what follows asks for the page anew
    expect(head.locator(".job-title .status")).to_have_text("finished", timeout=SOON)
    expect(head.locator(".best b")).to_have_text("0.3333")
    expect(head.locator(".best a")).to_have_text("trial 0")
    expect(page.locator("#trials tbody tr")).to_have_count(4)
    expect(page.locator("#trials tr", has_text="0.95").locator(".status")).to_have_text("failed")
    charts_follow_each_other(page)
    watched.shoot("sweep-run")

    page.get_by_role("link", name="eval/loss", exact=True).click()
    page.wait_for_url("**order=result*")  # with its scripts
    expect(page.locator("#trials tbody tr").first).to_contain_text("best")
    page.get_by_role("button", name="Run failed again").click()
    page.locator("#ask").get_by_role("button", name="Run failed again").click()
    expect(page.locator(".toast", has_text="is running again")).to_be_visible()
    expect(page.locator(".toast", has_text="first-sweep finished.")).to_be_visible(timeout=SOON)
    page.locator("#trials tbody a", has_text="first-sweep-0").click()
    page.get_by_role("link", name="first-sweep", exact=True).click()
    page.wait_for_url("**/sweeps/first-sweep")
    page.get_by_role("button", name="Delete").click()
    page.get_by_label("Delete its jobs too").check()
    page.locator("#delete-sweep").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No sweeps here yet")).to_be_visible()
    assert [job["name"] for job in server.json("training", "list")] == ["first"]
    assert watched.problems == []


def clicked_on_second_dot(page):
    """Click on the second trial's dot and return what the tip says; the dot is somewhere on a line."""
    x = page.locator("#best-so-far").evaluate("box => 62 + 1 / 3 * (box.clientWidth - 78)")
    for y in range(20, 220, 8):
        page.locator("#best-so-far svg").hover(position={"x": x, "y": y})
        if page.locator(".tip").is_visible():
            told = page.locator(".tip b").inner_text()
            page.locator("#best-so-far svg").click(position={"x": x, "y": y})
            return told
    return ""


def charts_follow_each_other(page):
    expect(page.locator("#parallel .axis-name")).to_have_text([re.compile("^lr"), re.compile("^eval/loss")])
    low = page.get_by_role("slider", name="lr: lowest shown")
    low.focus()
    for _ in range(5):
        low.press("Shift+ArrowUp")
    expect(page.locator("#trial-shown")).to_contain_text("1 of 4 in the chosen ranges")
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("#trial-shown")).not_to_contain_text("in the chosen ranges")
    link = page.locator("#trial-shown a")
    for _ in range(3):  # a last update from the server may move the dots between the two moves of the mouse
        assert clicked_on_second_dot(page).startswith("trial 1: ")
        with suppress(AssertionError):
            expect(link).to_be_visible()
            break
    expect(page.locator("#trial-shown a")).to_have_text("Open its job")


def test_a_job_that_waits_says_why_and_starts_when_its_change_is_made(server, watched, folder):
    page = watched.page
    base = enter(server, page)
    server.cli("training", "run", "holder", "--accels", "3", "--", "holds.py", cwd=folder)
    server.wait_for("holder", lambda job: job.status == "running")
    server.cli("training", "run", "waiter", "--accels", "2", "--", "holds.py", cwd=folder)
    page.goto(f"{base}/w/default/jobs/waiter")
    why = page.locator("#why")
    expect(why).to_contain_text("2 slots")
    expect(why).to_contain_text("'holder' holds 3")
    expect(why.locator(".command code")).to_have_text("shoal training change waiter --accels 1")
    why.get_by_role("button", name="Change it so").click()
    page.locator("#ask").get_by_role("button", name="Change it so").click()
    expect(page.locator("#job-head .status")).to_have_text("running", timeout=SOON)
    expect(why).to_have_count(0)
    for name in ("holder", "waiter"):
        server.cli("training", "stop", name)
    assert watched.problems == []
