"""A job over two nodes started from the page: its code is checked as it is dropped, and it is tried before it starts."""

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")
from browser_actions import drop, enter
from playwright.sync_api import expect

from shoal.testing.live import live_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with live_server(tmp_path_factory.mktemp("server") / "home", preflight=True) as server:
        yield server


def bring(page, base, name, text):
    page.goto(f"{base}/w/default/jobs/new")
    drop(page, f"{name}.py", text.encode())
    expect(page.get_by_label("Script to run")).to_have_value(f"{name}.py")
    page.get_by_label("Nodes", exact=True).fill("2")
    expect(page.locator("#preview")).to_contain_text("tried before it starts, as it is to run on more than one node")


def test_one_that_passes_starts_by_itself_and_the_draft_is_gone(server, watched):
    page = watched.page
    base = enter(server, page)
    bring(page, base, "fine", "print('trained', flush=True)\n")
    page.get_by_role("button", name="Start the job").click()
    expect(page.locator("#preflight")).to_contain_text("Its first steps are tried before it starts")
    page.wait_for_url("**/jobs/fine", timeout=WAIT_MS)
    assert server.wait_for("fine", lambda job: job.status.is_terminal).status == "succeeded"
    with server.client() as client:
        assert [job.name for job in client.jobs.list()] == ["fine"]
        assert client.jobs.get("fine").preflight is not None
    page.goto(f"{base}/w/default/jobs/new")
    expect(page.get_by_label("Name of the job")).to_have_value("")
    assert watched.problems == []


def test_one_that_would_fail_is_not_started_until_one_says_so(server, watched):
    page = watched.page
    base = enter(server, page)
    bring(page, base, "faulty", "import torch_geometrically\nopen('/home/alice/words.txt')\n")
    expect(page.locator("#code-check")).to_contain_text("/home/alice/words.txt")
    page.get_by_role("button", name="Start the job").click()
    expect(page.locator("#preflight")).to_contain_text("It was not started.", timeout=WAIT_MS)
    expect(page.locator("#preflight")).to_contain_text("torch_geometrically")
    with server.client() as client:
        assert client.jobs.list(search="faulty") == []
    page.get_by_role("button", name="Start it anyway").click()
    page.wait_for_url("**/jobs/faulty")
    assert server.wait_for("faulty", lambda job: job.status.is_terminal).status == "failed"
    assert watched.problems == []
