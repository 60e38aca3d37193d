"""`shoal training share`, against a scripted server: a file whole or not at all, and never in place of another unasked."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import wireviews as views
from clirun import Cli
from stubserver import Stub, reply

JOB = "/workspaces/default/jobs/hello"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def sharing(stub: Stub) -> Stub:
    stub.routes = {f"GET {JOB}": reply(body=views.job()), f"GET {JOB}/share": reply(body=b"<html>run</html>")}
    return stub


def test_the_file_is_written_and_its_path_printed(sharing: Stub, cli: Cli, here: Path) -> None:
    ran = cli("training", "share", "hello")
    assert (ran.code, ran.out) == (0, "hello.html\n")
    assert (here / "hello.html").read_text() == "<html>run</html>"
    assert [p.name for p in here.iterdir()] == ["hello.html"]


def test_a_file_or_a_folder_may_be_named(sharing: Stub, cli: Cli, here: Path) -> None:
    (here / "reports").mkdir()
    assert cli("training", "share", "hello", "-o", "run.html").code == 0
    assert cli("training", "share", "hello", "--output", "reports").out == "reports/hello.html\n"
    assert (here / "run.html").is_file() and (here / "reports/hello.html").is_file()
    told = json.loads(cli("training", "share", "hello", "-o", "third.html", "--json").out)
    assert told == {"path": "third.html", "size": 16}


def test_what_is_there_is_not_replaced_unless_one_says_so(sharing: Stub, cli: Cli, here: Path) -> None:
    (here / "hello.html").write_text("mine")
    ran = cli("training", "share", "hello")
    assert ran.code != 0 and "already exists" in ran.err and "--force" in ran.err
    assert (here / "hello.html").read_text() == "mine"
    assert cli("training", "share", "hello", "--force").code == 0
    assert (here / "hello.html").read_text() == "<html>run</html>"


def test_a_folder_that_is_not_there_is_named(sharing: Stub, cli: Cli) -> None:
    ran = cli("training", "share", "hello", "-o", "no/such/run.html")
    assert ran.code == 2 and "There is no folder no/such" in ran.err


def test_a_failure_leaves_no_file(sharing: Stub, cli: Cli, here: Path) -> None:
    error = {"error": {"code": "internal", "message": "It broke.", "hint": None, "details": {}}}
    sharing.routes[f"GET {JOB}/share"] = reply(500, error)
    ran = cli("training", "share", "hello")
    assert ran.code != 0 and "It broke." in ran.err
    assert list(here.iterdir()) == []


def test_a_connection_that_breaks_leaves_what_was_there(sharing: Stub, cli: Cli, here: Path) -> None:
    def half(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"<html>")
        handler.close_connection = True

    (here / "hello.html").write_text("mine")
    sharing.routes[f"GET {JOB}/share"] = half
    ran = cli("training", "share", "hello", "--force")
    assert ran.code != 0 and "does not answer" in ran.err
    assert {p.name: p.read_text() for p in here.iterdir()} == {"hello.html": "mine"}
