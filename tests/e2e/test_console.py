"""The console in a real browser, from the one-time link to the last click."""

import re
import zipfile

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")
from browser_actions import enter
from playwright.sync_api import expect

from shoal.testing.patience import patient

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

XSS = "<img src=x onerror=alert(1)>"
SCRIPT = f"""
import json, math, pathlib, sys, time
import shoal

run = shoal.init(parallel="none")
print("\\x1b[32mgreen\\x1b[0m {XSS} <script>alert(2)</script>", flush=True)
out = pathlib.Path("/output-checkpoint/step-5")
for step in range(1, int(sys.argv[1]) + 1):
    run.step(loss=3 * math.exp(-step / 30), lr=1e-3)
    print(f"step {{step}} of {{sys.argv[1]}}", flush=True)
    if step == 5:
        out.mkdir(parents=True)
        (out / "model.bin").write_bytes(b"weights")
        (out / "trainer_state.json").write_text(json.dumps({{"global_step": 5, "log_history": []}}))
    time.sleep(0.1)
raise RuntimeError("{XSS}")
"""


@pytest.fixture
def code(tmp_path):
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    return folder


def test_from_the_link_to_a_job_that_is_watched_stopped_and_deleted(server, watched, code, tmp_path):
    page = watched.page
    enter(server, page)
    expect(page.get_by_role("heading", name="Home")).to_be_visible()
    expect(page.get_by_text("Nothing has run yet")).to_be_visible()
    watched.shoot("home-empty")

    page.get_by_role("link", name="Workspaces").click()
    page.get_by_role("button", name="New workspace").click()
    page.get_by_label("Name", exact=True).fill("<bad name>")
    page.locator("#new-workspace form").evaluate("form => form.noValidate = true")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#new-workspace .form-error")).to_contain_text("not a usable workspace name")
    page.get_by_label("Name", exact=True).fill("team")
    page.get_by_role("button", name="Create").click()
    expect(page).to_have_url(re.compile("/w/team/jobs$"))
    expect(page.get_by_text("No jobs here yet")).to_be_visible()

    upload_a_dataset(page, tmp_path)
    watched.shoot("dataset")

    server.cli("training", "run", "live", "--workspace", "team", "--", "train.py", "900", cwd=code)
    page.get_by_role("link", name="Jobs", exact=True).click()
    row = page.locator("tr", has_text="live")
    expect(row.locator(".status")).to_have_text("running", timeout=patient(60_000))
    watched.shoot("jobs")
    row.get_by_role("link", name="live", exact=True).click()

    watch_the_charts(page)
    watched.shoot("metrics")
    watch_the_log(page)
    watched.shoot("logs")
    download_a_checkpoint(page, tmp_path)
    watched.shoot("checkpoints")
    for tab in ("System", "Overview"):
        page.get_by_role("link", name=tab).click()
        expect(page.locator(".charts .card, .timeline").first).to_be_visible(timeout=patient(20_000))
        watched.shoot(tab.lower())

    page.get_by_role("button", name="Stop").click()
    page.locator("#ask").get_by_role("button", name="Stop").click()
    expect(page.locator("#job-head .status")).to_have_text("stopped", timeout=patient(60_000))
    page.get_by_role("button", name="Delete").click()
    page.locator("#ask").get_by_role("button", name="Delete").click()
    expect(page).to_have_url(re.compile("/w/team/jobs$"))
    expect(page.get_by_text("No jobs here yet")).to_be_visible()
    assert watched.problems == []


def upload_a_dataset(page, tmp_path):
    (tmp_path / "words.csv").write_text(f"id,text\n1,{XSS}\n")
    page.get_by_role("navigation", name="Workspace").get_by_role("link", name="Datasets").click()
    page.get_by_role("button", name="Upload").click()
    page.locator("#up-files").set_input_files(tmp_path / "words.csv")
    expect(page.get_by_label("Name", exact=True)).to_have_value("words")
    page.locator("#upload").get_by_role("button", name="Upload").click()
    page.get_by_role("link", name="words").click()
    page.get_by_role("link", name="words.csv").click()
    expect(page.locator(".view td", has_text=XSS)).to_be_visible()


def watch_the_charts(page):
    page.get_by_role("link", name="Metrics").click()
    chart = page.locator(".chart", has_text="loss")
    expect(chart.locator("canvas")).to_be_visible(timeout=patient(30_000))
    before = chart.locator("header output").inner_text()
    expect(chart.locator("header output")).not_to_have_text(before, timeout=patient(20_000))
    page.get_by_label("Run time").check()
    page.locator("#chart-tools summary", has_text="Options").click()
    page.get_by_label("Log scale").check()
    page.keyboard.press("Escape")
    page.locator("#smooth").fill("0.9")
    expect(page.locator("output[for=smooth]")).to_have_text("0.90")


def watch_the_log(page):
    page.get_by_role("link", name="Logs").click()
    log = page.locator("#log")
    expect(log.locator(".a32", has_text="green")).to_be_visible(timeout=patient(20_000))
    expect(log).to_contain_text(XSS)
    count = log.locator(".ln").count()
    expect(log.locator(".ln").nth(count + 3)).to_be_attached(timeout=patient(20_000))
    page.get_by_label("Search the log").fill("step 3 of")
    expect(page.locator("#log-note")).to_have_text("1 line", timeout=patient(10_000))
    log.locator(".ln").first.click()
    expect(log.locator(".ln.mark")).to_contain_text("step 3 of")
    page.get_by_role("button", name="Follow", exact=True).click()
    expect(log.locator(".ln.mark")).to_have_count(0)


def download_a_checkpoint(page, tmp_path):
    page.get_by_role("link", name="Checkpoints").last.click()
    with page.expect_download() as download:
        page.get_by_role("link", name=re.compile("Download step-5")).click()
    download.value.save_as(tmp_path / "got.zip")
    names = zipfile.ZipFile(tmp_path / "got.zip").namelist()
    assert any(name.endswith("step-5/model.bin") for name in names), names


def test_pages_find_their_way_back_after_the_server_was_away(server, watched, code):
    page = watched.page
    server.cli("training", "run", "long", "--", "train.py", "900", cwd=code)
    base = enter(server, page)
    page.goto(f"{base}/w/default/jobs/long/logs")
    expect(page.locator("#log .ln").nth(5)).to_be_attached(timeout=patient(60_000))
    server.kill()
    expect(page.locator("#offline")).to_be_visible(timeout=patient(20_000))
    server.start()
    expect(page.locator("#offline")).to_be_hidden(timeout=patient(30_000))
    count = page.locator("#log .ln").count()
    expect(page.locator("#log .ln").nth(count + 5)).to_be_attached(timeout=patient(30_000))
    steps = [int(t) for t in re.findall(r"step (\d+) of", page.locator("#log").inner_text())]
    assert steps == sorted(set(steps)), "lines were lost or doubled"
    server.cli("training", "stop", "long")
    expect(page.locator("#job-head .status")).to_have_text("stopped", timeout=patient(60_000))


def test_a_failure_shows_where_it_happened(server, watched, code):
    page = watched.page
    server.cli("training", "run", "fails", "--max-restarts", "0", "--", "train.py", "3", cwd=code)
    server.wait_for("fails", lambda job: job.status.is_terminal)
    base = enter(server, page)
    expect(page.get_by_text("Needs attention")).to_be_visible()
    page.goto(f"{base}/w/default/jobs/fails")
    page.get_by_role("link", name="see where").click()
    expect(page.locator("#log .ln.mark")).to_contain_text("Traceback")
    expect(page.locator("#log .ln.mark")).to_be_in_viewport()
    assert watched.problems == []


def test_a_session_that_ends_under_a_form_keeps_what_was_typed(server, watched):
    page = watched.page
    base = enter(server, page)
    page.goto(f"{base}/w/default/secrets")
    page.get_by_label("Name", exact=True).fill("TOKEN")
    page.get_by_label("Value").fill("typed with care")
    watched.context.clear_cookies()
    page.get_by_role("button", name="Set").click()
    expect(page.get_by_text("Your session has ended")).to_be_visible()
    expect(page.get_by_label("Value")).to_have_value("typed with care")
    page.get_by_role("button", name="Stay here").click()
    enter(server, watched.context.new_page())
    page.get_by_role("button", name="Set").click()
    expect(page.locator("#secrets")).to_contain_text("TOKEN")


def test_the_theme_is_the_systems_until_one_is_chosen(server, chromium):
    context = chromium.new_context(color_scheme="dark")
    try:
        page = context.new_page()
        enter(server, page)
        theme = "document.documentElement.dataset.theme"
        assert page.evaluate(theme) == "dark"
        page.get_by_role("button", name="Light or dark").click()
        page.reload()
        assert page.evaluate(theme) == "light"
    finally:
        context.close()
