"""List pages: the server tells them what changes; what ends is said; and nothing is missed while the server is away."""

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")
from browser_actions import enter
from playwright.sync_api import expect

from shoal.testing.patience import patient

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

SCRIPT = """
import pathlib, sys, time

while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""


@pytest.fixture
def start(server, tmp_path):
    """Starts a job that runs until told to end; returns how to tell it."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)

    def run(name):
        server.cli("training", "run", name, "--", "train.py", str(tmp_path / name), cwd=code)
        return (tmp_path / name).touch

    return run


def test_a_list_is_told_what_changes_also_by_a_server_that_was_away(server, watched, start):
    page = watched.page
    base = enter(server, page)
    page.goto(f"{base}/w/default/jobs")
    end_first, end_second = start("first"), start("second")
    status = {name: page.locator("tr", has_text=name).locator(".status") for name in ("first", "second")}
    for name in status:
        expect(status[name]).to_have_text("running", timeout=patient(60_000))
    page.get_by_label("Choose second to compare").check()

    end_first()
    expect(status["first"]).to_have_text("succeeded", timeout=patient(30_000))
    expect(page.locator(".toast", has_text="first succeeded.")).to_have_count(1)
    expect(page.get_by_label("Choose second to compare")).to_be_checked()

    server.kill()
    expect(page.locator("#offline")).to_be_visible(timeout=patient(20_000))
    end_second()
    server.start()
    expect(status["second"]).to_have_text("succeeded", timeout=patient(60_000))
    expect(page.locator("#offline")).to_be_hidden(timeout=patient(20_000))
    expect(page.locator(".toast", has_text="second succeeded.")).to_have_count(1)
    assert watched.problems == []


def test_what_ended_between_two_pages_is_told_on_the_next(server, watched, start):
    page = watched.page
    base = enter(server, page)
    end = start("third")
    page.goto(f"{base}/queue")
    page.goto(f"{base}/machines")
    expect(page.locator("#machines")).to_contain_text("third", timeout=patient(60_000))
    page.goto("about:blank")
    end()
    server.wait_for("third", lambda job: job.status.is_terminal)
    page.goto(f"{base}/keys")
    expect(page.locator(".toast", has_text="third succeeded.")).to_have_count(1)
