"""JupyterLab in a job, in a real browser: opened by the link, computing in the job, and unable to leave anything behind."""

import json
import signal
import subprocess
import sys
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytest.importorskip("jupyterlab", reason="needs jupyterlab")
from playwright.sync_api import TimeoutError, expect

from shoal.testing.patience import patient

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
WORKER = "navigator.serviceWorker.register('/files/sw.js').then(() => 'registered', (error) => error.name)"


@pytest.fixture
def link(server, tmp_path):
    (tmp_path / "model.py").write_text("ANSWER = 42\n")
    (tmp_path / "sw.js").write_text("self.addEventListener('fetch', () => {});\n")
    argv = [sys.executable, "-m", "shoal.cli", "training", "shell", "lab", "--jupyter", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(argv, cwd=tmp_path, env=server.env(), text=True, **pipes) as process:
        said = ""
        while not said.endswith("}\n") and (line := process.stdout.readline()):
            said += line
        assert said, process.communicate()
        yield json.loads(said)["url"]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=patient(120))


def test_a_notebook_computes_in_the_job_and_nothing_of_the_console_is_seen_there(server, link, watched):
    page = watched.page
    page.goto(link)
    page.wait_for_url("http://localhost:*/lab**", timeout=patient(120_000))
    page.locator(".jp-LauncherCard[data-category=Notebook]").first.click(timeout=patient(120_000))
    cell = page.locator(".jp-Notebook .jp-Cell .cm-content").first
    output = page.locator(".jp-OutputArea-output").first
    for _ in range(6):  # a notebook that is still loading drops what was typed into it
        cell.fill("import model; print('answer', model.ANSWER)", timeout=patient(60_000))
        cell.press("Shift+Enter")
        with suppress(TimeoutError):
            output.wait_for(timeout=patient(20_000))
            break
    expect(output).to_contain_text("answer 42")
    watched.shoot("jupyterlab")
    console, here = urlsplit(link), urlsplit(page.url)
    names = {cookie["name"] for cookie in watched.context.cookies(f"http://{here.netloc}")}
    assert names == {f"shoal_jupyter_{here.port}"}
    assert page.evaluate("document.cookie") == ""
    assert page.evaluate(WORKER) in ("SecurityError", "TypeError")
    reached = "url => fetch(url, {credentials: 'include'}).then(() => 'answered', (error) => error.name)"
    assert page.evaluate(reached, f"http://{console.netloc}/keys.json") == "TypeError", (
        "its pages do not read the console"
    )
