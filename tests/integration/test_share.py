"""A real job, from its script to what the console and a shared file tell of it."""

from __future__ import annotations

import json
import platform
import re

import pytest

from shoal.testing.live import live_server

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SCRIPT = """
import os
import shoal

run = shoal.init(parallel="none", config={"width": 64, "api_key": "key-that-is-planted"})
for step in range(1, 21):
    run.step(loss=1 / step)
run.log_table("worst", ["id", "text"], [[1, "<b>bold</b>"]])
run.log_image("black", shoal_png)
print("the token is", os.environ["HUB_TOKEN"])
"""
PNG = (
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c63f8cfc0f01f0005000201ffa3c0d3a8"
    "0000000049454e44ae426082"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with live_server(tmp_path_factory.mktemp("share") / "home", slots=1, warm=False) as server:
        yield server


@pytest.fixture(scope="module")
def job(server, tmp_path_factory):
    code = tmp_path_factory.mktemp("code")
    (code / "train.py").write_text(SCRIPT.replace("shoal_png", f"bytes.fromhex('{PNG}')"))
    with server.client() as client:
        client.secrets.set("hub", "value-that-is-planted")
    server.cli("training", "run", "toy", "--secret", "HUB_TOKEN=hub", "--", "train.py", cwd=code)

    def has_all(view):
        with server.client() as client:
            return view.status.is_terminal and "loss" in view.metrics and len(client.metrics.media(view.id)) == 2

    return server.wait_for("toy", has_all)


def page(server, path):
    with server.client() as client:
        answer = client._http._client.get(f"{client.url}{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()


def test_the_agent_tells_what_the_job_ran_on(server, job):
    found = page(server, "/w/default/jobs/toy/code.json")
    assert found["environment"]["python"] == platform.python_version()
    assert "pydantic" in found["environment"]["packages"]
    assert found["preview"]["path"] == "train.py" and found["config"] == {"width": 64, "api_key": "***"}


def test_what_it_logged_is_in_the_gallery(server, job):
    with server.client() as client:
        assert {m.name for m in client.metrics.media("toy")} == {"worst", "black"}
    figures = {f["name"]: f for f in page(server, "/w/default/jobs/toy/figures.json")["figures"]}
    assert figures["worst"]["table"]["rows"] == [["1", "<b>bold</b>"]] and figures["black"]["kind"] == "picture"


def test_the_shared_file_has_it_all_but_the_secrets(server, job, tmp_path):
    done = server.cli("training", "share", "toy", "-o", str(tmp_path / "run.html"))
    assert done.stdout.strip() == str(tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert len(data["metrics"]["loss"]) == 20
    assert any("the token is ***" in line[3] for line in data["log"])
    assert "data:image/png;base64," in text and "width" in text
    for planted in ("value-that-is-planted", "key-that-is-planted"):
        assert planted not in re.sub(r'<details class="file".*?</details>', "", text, flags=re.DOTALL)
    refused = server.cli("training", "share", "toy", "-o", str(tmp_path / "run.html"), check=None)
    assert refused.returncode == 4 and "--force" in refused.stderr
