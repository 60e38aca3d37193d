"""A new job by drag and drop, in a real browser: arguments both ways, a session that ends under it, a clone; and people."""

import re
import zipfile

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")
from browser_actions import drop, enter
from playwright.sync_api import expect

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

SCRIPT = "import json, sys\nprint('got', json.dumps(sys.argv[1:]), flush=True)\n"


def packed(tmp_path):
    with zipfile.ZipFile(tmp_path / "net.zip", "w") as archive:
        archive.writestr("net/train.py", SCRIPT)
        archive.writestr("net/other.py", "")
        archive.writestr("net/look.ipynb", "{}")
    return (tmp_path / "net.zip").read_bytes()


def test_code_is_dropped_arguments_are_filled_in_and_the_job_runs_as_the_command_says(server, watched, tmp_path):
    page = watched.page
    base = enter(server, page)
    page.goto(f"{base}/w/default/jobs")
    page.get_by_role("link", name="New job").first.click()
    page.wait_for_url("**/jobs/new")  # with its scripts
    drop(page, "look.ipynb", b"{}")
    expect(page.locator(".bring .form-error")).to_contain_text("not a notebook")
    drop(page, "net.zip", packed(tmp_path))
    expect(page.get_by_label("Script to run")).to_have_value("train.py")
    expect(page.locator(".bring .form-error")).to_be_empty()
    expect(page.get_by_label("Name of the job")).to_have_value("net")

    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_label("Name of an argument").fill("lr")
    page.get_by_label("Value of the argument").fill("3e-4")
    line = page.get_by_label("All of them in one line")
    expect(line).to_have_value("--lr 3e-4")
    line.press("End")
    line.press_sequentially(" --text 'two words'")
    expect(page.get_by_label("Name of an argument").nth(1)).to_have_value("--text")
    expect(page.get_by_label("Value of the argument").nth(1)).to_have_value("two words")
    command = page.locator("#preview .command code")
    expect(command).to_have_text("shoal training run net --zip net.zip -- train.py --lr 3e-4 --text 'two words'")
    page.get_by_label("Slots per node").fill("999")
    expect(page.locator("#preview .note")).to_contain_text("can never run here")
    page.get_by_role("button", name="Start the job").click()
    expect(page.locator("#submit-error")).to_contain_text("can never run here")
    page.get_by_label("Slots per node").fill("2")
    expect(page.locator("#preview .note")).to_contain_text("start immediately")

    cookies = watched.context.cookies()
    watched.context.clear_cookies()
    page.get_by_role("button", name="Start the job").click()
    expect(page.get_by_text("Your session has ended")).to_be_visible()
    page.reload()
    expect(page).to_have_url(re.compile("/sign-in"))
    watched.context.add_cookies(cookies)
    page.goto(f"{base}/w/default/jobs/new")
    expect(page.get_by_text("What you had typed is back.")).to_be_visible()
    expect(command).to_have_text(
        "shoal training run net --zip net.zip --accels 2 -- train.py --lr 3e-4 --text 'two words'"
    )
    page.get_by_role("button", name="Start the job").click()
    expect(page).to_have_url(re.compile("/w/default/jobs/net$"))
    server.wait_for("net", lambda job: job.status == "succeeded")
    assert 'got ["--lr", "3e-4", "--text", "two words"]' in [r["text"] for r in server.logs("net")]

    page.get_by_role("link", name="Clone").click()
    expect(page.get_by_label("Name of the job")).to_have_value("net-2")
    page.get_by_label("Remove this argument").first.click()
    expect(command).to_have_text("shoal training run net-2 --zip net.zip --accels 2 -- train.py --text 'two words'")
    page.get_by_role("button", name="Start the job").click()
    expect(page).to_have_url(re.compile("/w/default/jobs/net-2$"))
    page.goto(f"{base}/w/default/jobs/new")
    expect(page.get_by_label("Name of the job")).to_have_value("")
    expect(page.get_by_text("What you had typed is back.")).to_be_hidden()
    assert watched.problems == []


def test_people_are_managed_and_sessions_elsewhere_end(server, watched, chromium):
    page = watched.page
    base = enter(server, page)
    page.get_by_role("link", name="Admin").click()
    page.get_by_role("button", name="Add someone").click()
    dialog = page.locator("#new-account")
    dialog.get_by_label("E-mail").fill("ada@example.org")
    dialog.get_by_label("First password").fill("long enough, this")
    dialog.get_by_role("button", name="Add").click()
    row = page.get_by_role("row", name="ada@example.org")
    expect(row).to_contain_text("member")

    elsewhere = chromium.new_context()
    try:
        theirs = elsewhere.new_page()
        theirs.goto(f"{base}/sign-in")
        theirs.get_by_text("Sign in with a password instead").click()
        theirs.get_by_label("E-mail").fill("ada@example.org")
        theirs.get_by_label("Password", exact=True).fill("long enough, this")
        theirs.get_by_role("button", name="Sign in").click()
        expect(theirs.get_by_role("heading", name="Home")).to_be_visible()
        row.get_by_role("button", name="Disable").click()
        page.locator("#ask").get_by_role("button", name="Disable").click()
        expect(row).to_contain_text("disabled")
        theirs.goto(f"{base}/settings")
        expect(theirs).to_have_url(re.compile("/sign-in"))

        enter(server, theirs)
        page.goto(f"{base}/settings")
        before = page.locator("#sessions li").count()
        page.locator("#sessions").get_by_role("button", name="Sign out", exact=True).first.click()  # the newest
        page.locator("#ask").get_by_role("button", name="Sign out").click()
        expect(page.locator("#sessions li")).to_have_count(before - 1)
        theirs.reload()
        expect(theirs).to_have_url(re.compile("/sign-in"))
    finally:
        elsewhere.close()
    page.get_by_label("Dark", exact=True).check()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"

    page.goto(f"{base}/workspaces")
    page.get_by_role("button", name="New workspace").click()
    page.get_by_label("Name", exact=True).fill("images")
    page.get_by_role("button", name="Create").click()
    expect(page).to_have_url(re.compile("/w/images/jobs$"))
    page.get_by_role("link", name="Members").click()
    expect(page).to_have_url(re.compile("/members$"))
    page.wait_for_load_state()  # before that nothing listens to the choice
    page.get_by_label("Role of owner@localhost").select_option("viewer")
    expect(page.locator(".toast.bad")).to_contain_text("needs an owner")
    expect(page.get_by_label("Role of owner@localhost")).to_have_value("owner")
    page.get_by_label("Name", exact=True).fill("vision")
    page.get_by_role("button", name="Rename").click()
    expect(page).to_have_url(re.compile("/w/vision/members$"))
    assert watched.problems == []
