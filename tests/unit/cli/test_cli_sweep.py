"""`shoal sweep …` against a scripted server: what is sent, what is told."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import wireviews as views
from clirun import Cli
from stubserver import Stub, hang_up, reply

from shoal.cli.sweep import follow
from shoal.core.errors import NameTaken, NotFound

SWEEPS = "/workspaces/default/sweeps"
RUN = ("sweep", "run", "wide")


def trial(number: int, state: str = "done", result: float | None = 0.5, **changes: Any) -> dict[str, Any]:
    ended = None if state == "running" else views.CREATED
    return {
        "number": number, "params": {"lr": 0.001 * (number + 1)}, "state": state, "result": result, "reports": 3, "step": 30,
        "job": f"wide-{number}", "job_id": f"job_{number}", "job_status": "succeeded", "reason": None, "seconds": 12.5,
        "created_at": views.CREATED, "ended_at": ended, **changes,
    }  # fmt: skip


def sweep(status: str = "finished", trials: list[dict[str, Any]] | None = None, /, **changes: Any) -> dict[str, Any]:
    trials = [trial(0), trial(1, result=0.25)] if trials is None else trials
    states = [t["state"] for t in trials]
    spec = {
        "name": "wide",
        "job": views.spec(name="wide"),
        "space": {"lr": {"kind": "choice", "values": [0.001, 0.002]}},
    }
    return {
        "id": "sweep_1", "name": "wide", "status": status, "search": "grid", "metric": "eval/loss", "direction": "min",
        "trials": len(trials), "counts": {s: states.count(s) for s in set(states)},
        "best": min((t for t in trials if t["result"] is not None), key=lambda t: t["result"], default=None),
        "reason": None, "eta_s": None if status != "running" else 90.0, "created_by": "me@example.org",
        "created_at": views.CREATED, "ended_at": None if status == "running" else "2025-01-31T12:03:20Z", "spec": spec,
        "importance": {"lr": 1.0}, "slot_seconds": 25.0, "cost": None, **changes,
    }  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(folder)
    return folder


def accept(stub: Stub) -> None:
    def created(handler: BaseHTTPRequestHandler) -> None:
        reply(201, sweep("running", [], spec=stub.asked[-1].json, trials=6))(handler)

    stub.routes = {
        "POST /workspaces/default/store/missing": reply(body={"missing": []}),
        "POST /workspaces/default/sources": reply(201, {"id": "src_1", "manifest_id": "m", "size": 15, "files": 2}),
        f"POST {SWEEPS}": created,
    }


def sent(stub: Stub) -> Any:
    return next(a.json for a in stub.asked if a.path.endswith("/sweeps"))


def test_a_sweep_is_sent_with_its_space_and_the_job_of_every_trial(cli: Cli, stub: Stub, project: Path) -> None:
    accept(stub)
    ran = cli(
        *RUN, "--param", "lr=1e-4:1e-2:log", "--param", "width@size=64,128", "--param", "depth@size=2,4", "--search", "asha",
        "--trials", "9", "--parallel", "3", "--metric", "loss", "--direction", "max", "--first-rung", "2", "--factor", "4",
        "--seed", "7", "--accels", "2", "--env", "A=b", "--dataset", "words", "--", "train.py", "--param", "x",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    spec = sent(stub)
    assert ran.out == "sweep_1\n", "stdout is data"
    assert "shoal sweep trials wide -f" in ran.err
    assert spec["space"]["lr"] == {"kind": "between", "low": 1e-4, "high": 1e-2, "log": True, "whole": False}
    assert spec["space"]["width"] == {"kind": "choice", "values": [64, 128], "group": "size"}
    told = {
        k: spec[k]
        for k in ("name", "search", "trials", "parallel", "metric", "direction", "first_rung", "factor", "seed")
    }
    assert told == {
        "name": "wide", "search": "asha", "trials": 9, "parallel": 3, "metric": "loss", "direction": "max", "first_rung": 2,
        "factor": 4, "seed": 7,
    }  # fmt: skip
    job = spec["job"]
    assert (job["source_id"], job["entry"]) == ("src_1", ["train.py", "--param", "x"])
    assert (job["accels"], job["env"], job["datasets"]) == (2, {"A": "b"}, ["words"])


def test_without_a_word_on_it_lists_are_a_grid_and_ranges_are_searched(cli: Cli, project: Path) -> None:
    assert json.loads(cli(*RUN, "--param", "lr=1,2,3", "--dry-run", "--json", "--", "t.py").out)["search"] == "grid"
    ran = cli(*RUN, "--param", "lr=1:3", "--trials", "3", "--dry-run", "--json", "--", "t.py")
    assert json.loads(ran.out)["search"] == "tpe"


def test_a_preview_counts_the_trials_and_shows_the_first_commands(cli: Cli, stub: Stub, project: Path) -> None:
    ran = cli(*RUN, "--param", "a@g=1,2", "--param", "b@g=x,y z", "--param", "s=0,1,2", "--dry-run", "--", "t.py", "-v")
    lines = ran.out.splitlines()
    assert lines[0] == "6 trials by grid:"
    assert lines[1:3] == ["  wide-0  t.py -v --a 1 --b x --s 0", "  wide-1  t.py -v --a 2 --b 'y z' --s 0"]
    assert lines[-1] == "  … and 1 more"
    assert stub.asked == [], "nothing is submitted, nothing is sent"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--", "t.py"], "No parameters given", "shoal sweep run NAME --param"),
        (["--param", "lr", "--", "t.py"], "'lr' is not NAME=VALUES", "--param lr=1e-4,3e-4"),
        (["--param", "lr=1,2"], "No script given", "shoal sweep run wide --param"),
        (["--param", "lr=1,2", "--param", "lr=3", "--", "t.py"], "given twice", "--param lr=1,2,3"),
        (["--param", "lr=1:2", "--search", "grid", "--", "t.py"], "lr is a range", "--search tpe --trials 30"),
        (["--param", "lr=1:2", "--", "t.py"], "needs a number of trials", "--trials 30"),
        (["--param", "a@g=1,2", "--param", "b@g=1", "--", "t.py"], "a has 2, b has 1", "shoal sweep run --help"),
        (["--param", "a@g=1:2", "--trials", "3", "--", "t.py"], "needs single values", "--param a@g=1,2,3"),
        (["--param", "a=1", "--parallel", "0", "--", "t.py"], "--parallel: Input should be", "shoal sweep run --help"),
        (["--prm", "a=1", "--", "t.py"], "Unknown option --prm. Did you mean --param?", "shoal sweep run --help"),
        (["--file", "no.yaml", "--param", "a=1", "--", "t.py"], "There is no file no.yaml", "shoal sweep run NAME"),
        (
            ["stray", "--param", "a=1", "--", "t.py"],
            "Unexpected argument 'stray'",
            "shoal sweep run NAME [OPTIONS] -- t.py",
        ),
    ],
)
def test_what_is_wrong_is_told_with_the_next_command_and_nothing_is_sent(
    cli: Cli, stub: Stub, project: Path, words: list[str], message: str, hint: str
) -> None:
    ran = cli(*RUN, *words)
    assert ran.code == 2 and message in ran.err, ran.err
    assert hint in ran.err.splitlines()[-1]
    assert stub.asked == []


def test_what_the_server_refuses_is_told_in_its_words(cli: Cli, stub: Stub, project: Path) -> None:
    accept(stub)
    stub.routes[f"POST {SWEEPS}"] = reply(
        409, NameTaken("There is a sweep 'wide' already.", hint="pick another").to_wire()
    )
    ran = cli(*RUN, "--param", "lr=1,2", "--", "train.py")
    assert ran.code == 4 and "There is a sweep 'wide' already." in ran.err and "hint: pick another" in ran.err


def test_list_inspect_and_trials_show_the_best(cli: Cli, stub: Stub) -> None:
    trials = [trial(0), trial(1, result=0.25), trial(2, "failed", None, reason="exit code 1: \x1b[2Jboom")]
    view = sweep("finished", trials)
    stub.routes = {
        f"GET {SWEEPS}": reply(body=[view]),
        f"GET {SWEEPS}/wide": reply(body=view),
        f"GET {SWEEPS}/wide/trials": pages(stub, trials),
    }
    listed = cli("sweep", "list").out.splitlines()
    assert "3 of 3, 1 failed" in listed[1] and "0.25" in listed[1] and "lr=0.002" in listed[1]
    page = cli("sweep", "inspect", "wide").out
    assert "0.25 by trial 1: lr=0.002" in page and "100%" in page and "eval/loss, smaller is better" in page
    rows = cli("sweep", "trials", "wide").out.splitlines()
    assert [row.split()[:3] for row in rows[1:]] == [["0", "done", "0.5"], ["1", "done", "0.25"], ["2", "failed", "-"]]
    assert "exit code 1: boom" in rows[3] and "\x1b" not in rows[3]
    assert [t["number"] for t in json.loads(cli("sweep", "trials", "wide", "--limit", "2", "--json").out)] == [0, 1]
    assert json.loads(cli("sweep", "inspect", "wide", "--json").out)["spec"]["space"]["lr"]["values"] == [0.001, 0.002]


def pages(stub: Stub, trials: list[dict[str, Any]]) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return a handler that serves the trials after a number, like the server."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked = stub.asked[-1].path
        after = int(asked.partition("after=")[2].partition("&")[0] or -1)
        reply(body=[t for t in trials if t["number"] > after])(handler)

    return answer


class Story:
    """A sweep that goes on with every look at it."""

    def __init__(self, stub: Stub, *scenes: dict[str, Any] | None):
        self._stub, self._scenes, self._at = stub, scenes, -1
        stub.routes = {f"GET {SWEEPS}/wide": self._sweep, f"GET {SWEEPS}/wide/trials": self._trials}

    def _sweep(self, handler: BaseHTTPRequestHandler) -> None:
        self._at = min(self._at + 1, len(self._scenes) - 1)
        scene = self._scenes[self._at]
        hang_up(handler) if scene is None else reply(body=scene)(handler)

    def _trials(self, handler: BaseHTTPRequestHandler) -> None:
        scene = self._scenes[self._at]
        pages(self._stub, scene["_trials"] if scene else [])(handler)


def scene(status: str, *trials: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return sweep(status, list(trials), **changes) | {"_trials": list(trials)}


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "LOOK_S", 0.001)
    monkeypatch.setattr("shoal.client._http.PAUSES_S", (0.001,))


def test_followed_in_a_pipe_each_trial_is_told_once_when_it_ends(cli: Cli, stub: Stub, no_pauses: None) -> None:
    begun = scene("running", trial(0, "running", None), trial(1, "running", 0.9))
    later = scene(
        "running", trial(0, "running", 0.8), trial(1, "pruned", 0.9, reason="pruned: behind"), trial(2, "running", None)
    )
    ended = scene("finished", trial(0), trial(1, "pruned", 0.9, reason="pruned: behind"), trial(2, result=0.1))
    Story(stub, begun, begun, later, later, ended)
    ran = cli("sweep", "trials", "wide", "-f")
    assert ran.code == 0, ran.err
    assert [line.split("  ")[:3] for line in ran.out.splitlines()] == [
        ["trial 1", "pruned", "0.9"], ["trial 0", "done", "0.5"], ["trial 2", "done", "0.1"],
    ]  # fmt: skip
    assert "(pruned: behind)" in ran.out
    assert "best: 0.1 by trial 2: lr=0.003" in ran.err
    Story(stub, ended)
    lines = cli("sweep", "trials", "wide", "-f", "--json").out.splitlines()
    assert [json.loads(line)["number"] for line in lines] == [0, 1, 2]


def test_a_server_that_goes_away_is_waited_for(cli: Cli, stub: Stub, no_pauses: None) -> None:
    begun, ended = scene("running", trial(0, "running", None)), scene("finished", trial(0))
    Story(stub, begun, begun, *[None] * 8, ended)
    ran = cli("sweep", "trials", "wide", "-f")
    assert ran.code == 0 and ran.out.startswith("trial 0  done")
    assert ran.err.count("The sweep continues; waiting for the server.") == 1 and "The server is back." in ran.err


def test_a_sweep_that_fails_ends_the_command_with_1_and_its_reason(cli: Cli, stub: Stub, no_pauses: None) -> None:
    failed = scene("failed", trial(0, "failed", None, reason="boom"), reason="the first 3 trials failed: boom")
    Story(stub, failed)
    ran = cli("sweep", "trials", "wide", "-f")
    assert ran.code == 1 and "Sweep 'wide' failed: the first 3 trials failed: boom" in ran.err
    assert ran.err.splitlines()[-1] == "hint: shoal sweep trials wide"
    assert cli("sweep", "wait", "wide").code == 1


def test_interrupted_it_says_how_to_come_back_and_how_to_stop(cli: Cli, stub: Stub) -> None:
    Story(stub, scene("running", trial(0, "running", None)))
    look = stub.routes[f"GET {SWEEPS}/wide"]

    def interrupt(handler: BaseHTTPRequestHandler) -> None:
        look(handler)
        if len(stub.asked) > 1:
            os.kill(os.getpid(), signal.SIGINT)

    stub.routes[f"GET {SWEEPS}/wide"] = interrupt
    ran = cli("sweep", "trials", "wide", "-f")
    assert ran.code == 130
    assert "continues" in ran.err and "shoal sweep trials wide -f" in ran.err and "shoal sweep stop wide" in ran.err


def test_stop_rerun_and_delete_say_what_they_did(cli: Cli, stub: Stub) -> None:
    stub.routes = {
        f"POST {SWEEPS}/wide/stop": reply(body=sweep("stopped")),
        f"POST {SWEEPS}/gone/stop": reply(
            404, NotFound("There is no sweep 'gone'.", hint="shoal sweep list").to_wire()
        ),
        f"POST {SWEEPS}/wide/rerun": reply(body=sweep("running")),
        f"DELETE {SWEEPS}/wide": reply(204),
    }
    ran = cli("sweep", "stop", "gone", "wide")
    assert ran.code == 3 and "Sweep 'wide' has stopped." in ran.err and "hint: shoal sweep list" in ran.err
    assert "Sweep 'wide' is running again." in cli("sweep", "rerun", "wide", "--failed").err
    assert stub.asked[-1].path.endswith("/rerun?failed=true")
    assert cli("sweep", "delete", "wide").code == 2, "nobody can be asked here"
    assert "Sweep 'wide' deleted." in cli("sweep", "delete", "wide", "--jobs", "--yes").err
    assert stub.asked[-1].path.endswith("/wide?jobs=true")
    ran = cli("sweep", "stop")
    assert ran.code == 2 and "hint: shoal sweep list" in ran.err
