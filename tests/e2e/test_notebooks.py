"""A notebook dropped on the page, one among other code, and one from its address: made scripts, with a receipt, and run."""

import http.server
import json
import threading
import zipfile

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")
from browser_actions import drop, enter
from playwright.sync_api import expect

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
MOUNT = "from google.colab import drive\ndrive.mount('/content/drive')  # <img src=x onerror=alert(1)>"


def notebook(*cells):
    made = [{"cell_type": "code", "source": cell, "metadata": {}, "outputs": []} for cell in cells]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": made}).encode()


def test_a_notebook_is_dropped_looked_through_and_run(server, watched):
    page = watched.page
    base = enter(server, page)
    page.goto(f"{base}/w/default/jobs/new")
    drop(
        page,
        "My net.ipynb",
        notebook(MOUNT, "import sys\n!echo from a {'cell'} $PATH > /dev/null\nprint('got', sys.argv[1:])"),
    )
    expect(page.get_by_label("Script to run")).to_have_value("My_net.py")
    expect(page.locator(".receipt summary")).to_have_text("My net.ipynb: 2 cells, 1 to decide about")
    expect(page.locator(".receipt")).to_contain_text("Google Drive is not available in a job")
    page.get_by_label("All of them in one line").fill("--lr 1")
    page.get_by_role("button", name="Start the job").click()
    page.wait_for_url("**/jobs/My-net")
    server.wait_for("My-net", lambda job: job.status == "succeeded")
    assert "got ['--lr', '1']" in [record["text"] for record in server.logs("My-net")]
    page.goto(f"{base}/w/default/jobs/My-net/code")
    expect(page.locator("#receipt")).to_contain_text("needs a decision")
    page.goto(f"{base}/w/default/jobs/My-net/checkpoints")
    expect(page.get_by_text("shoal.download_checkpoint(")).to_contain_text(server.inspect("My-net")["id"])
    assert watched.problems == []


def test_a_notebook_among_code_or_at_an_address_becomes_a_script(server, watched, tmp_path):
    page = watched.page
    base = enter(server, page)
    with zipfile.ZipFile(tmp_path / "net.zip", "w") as archive:
        archive.writestr("net/train.py", "")
        archive.writestr("net/look.ipynb", notebook("%pip install httpx", "print(1)"))
    page.goto(f"{base}/w/default/jobs/new")
    drop(page, "net.zip", (tmp_path / "net.zip").read_bytes())
    script = page.get_by_label("Script to run")
    expect(script).to_have_value("train.py")
    script.select_option("look.ipynb")
    expect(script).to_have_value("look.py")
    expect(page.locator(".receipt")).to_contain_text("requirements.txt: httpx")

    class Web(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = notebook("x = 1") if self.headers["Authorization"] == "Bearer mine" else b"<html>sign in"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web) as web:
        threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        page.get_by_label("Notebook", exact=True).check()
        page.get_by_label("Address of the notebook").fill(f"http://127.0.0.1:{web.server_port}/far.ipynb")
        fetch = page.locator(".by-notebook").get_by_role("button", name="Fetch")
        fetch.click()
        expect(page.locator(".bring .form-error")).to_contain_text("web page")
        page.get_by_label("Token, if it is not public").fill("mine")
        fetch.click()
        expect(script).to_have_value("far.py")
        web.shutdown()
    expect(page.locator("#preview .command code")).to_contain_text("/far.ipynb --as-is")
    assert "mine" not in page.evaluate("JSON.stringify(sessionStorage)")
    assert watched.problems == []
