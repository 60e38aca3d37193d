"""`shoal training …` against a scripted server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import wireviews as views
from clirun import Cli
from stubserver import Stub, reply, stream

from shoal.core.errors import NameTaken, NotFound

JOBS = "/workspaces/default/jobs"
ALL_WORDS = ["train.py", "--json", "--help", "-f", "--nodes", "9", "--url", "x", "-q", "--", "--", "a=b", ""]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "code").mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "code" / "other.py").write_text("print('other')\n")
    (folder / ".gitignore").write_text("*.bin\n")
    (folder / "big.bin").write_bytes(b"x" * 100)
    monkeypatch.chdir(folder)
    return folder


def accept(stub: Stub, *, chunks: bool = False) -> None:
    """The server takes any source and any job."""
    source = {"id": "src_1", "manifest_id": "m", "size": 15, "files": 2}

    def missing(handler: BaseHTTPRequestHandler) -> None:
        reply(body={"missing": stub.asked[-1].json["hashes"] if chunks else []})(handler)

    def created(handler: BaseHTTPRequestHandler) -> None:
        spec = stub.asked[-1].json
        reply(201, views.job("queued", spec=spec, name=spec["name"], started_at=None))(handler)

    stub.routes = {
        "POST /workspaces/default/store/missing": missing,
        "POST /workspaces/default/store/chunks": reply(body={"stored": 1}),
        "POST /workspaces/default/sources": reply(201, source),
        "POST /workspaces/default/sources/git": reply(201, source),
        f"POST {JOBS}": created,
    }


def asked(stub: Stub, ending: str) -> Any:
    return next(a.json for a in stub.asked if a.method == "POST" and a.path.endswith(ending))


def sse(kind: str, data: Any, cursor: int = 0) -> bytes:
    return f"event: {kind}\nid: {cursor}\ndata: {json.dumps(data)}\n\n".encode()


def test_what_follows_the_dashes_reaches_the_script_verbatim(cli: Cli, stub: Stub, project: Path) -> None:
    accept(stub)
    ran = cli("training", "run", "hello", "--nodes", "1:4", "--accels", "2", "--", *ALL_WORDS)
    assert ran.code == 0, ran.err
    spec = asked(stub, "/jobs")
    assert spec["entry"] == ALL_WORDS
    assert (spec["min_nodes"], spec["max_nodes"], spec["accels"]) == (1, 4, 2)
    assert ran.out == views.ID + "\n", "stdout is data"


def test_a_name_is_made_up_if_none_is_typed(cli: Cli, stub: Stub, project: Path) -> None:
    accept(stub)
    ran = cli("training", "run", "--", "train.py", "--lr", "1")
    assert ran.code == 0, ran.err
    spec = asked(stub, "/jobs")
    assert re.fullmatch(r"[a-z]+-[a-z]+-\d\d", spec["name"]) and spec["entry"] == ["train.py", "--lr", "1"]
    assert f"Submitted job '{spec['name']}'" in ran.err
    (project / "one.py").write_text("print()\n")
    assert cli("training", "run", "--file", "one.py").code == 0
    assert cli("training", "run").code == 2


def test_a_name_that_is_taken_is_numbered_and_replace_is_left_to_the_server(
    cli: Cli, stub: Stub, project: Path
) -> None:
    accept(stub)
    created = stub.routes[f"POST {JOBS}"]
    taken = {"error": {"code": "name_taken", "message": "There is already a job 'hello'."}}

    def refused(handler: BaseHTTPRequestHandler) -> None:
        (reply(409, taken) if stub.asked[-1].json["name"] == "hello" else created)(handler)

    stub.routes |= {f"POST {JOBS}": refused, f"GET {JOBS}": reply(body=[views.job("succeeded", name="hello")])}
    ran = cli("training", "run", "hello", "--", "train.py")
    assert ran.code == 0, ran.err
    assert "There is already a job 'hello', so this one is 'hello-2'" in ran.err
    assert "training logs hello-2" in ran.err
    stub.routes[f"POST {JOBS}"] = created
    assert cli("training", "run", "hello", "--replace", "--", "train.py").code == 0
    assert stub.asked[-1].path.endswith("/jobs?replace=true")


def test_files_over_20_mb_are_named_before_they_are_sent(cli: Cli, stub: Stub, project: Path) -> None:
    accept(stub)
    (project / "weights.pt").touch()
    os.truncate(project / "weights.pt", 25_000_000)
    ran = cli("training", "run", "hello", "--", "train.py")
    assert ran.code == 0, ran.err
    assert "warning: weights.pt (25.0 MB) is sent with the code." in ran.err
    assert "list them in .shoalignore" in ran.err and "dataset push NAME --file PATH" in ran.err
    assert ran.err.index("weights.pt") < ran.err.index("Source:")
    (project / ".shoalignore").write_text("*.pt\n")
    assert "weights.pt" not in cli("training", "run", "hello", "--", "train.py").err


def test_the_command_of_the_flexai_guide_works(cli: Cli, stub: Stub) -> None:
    accept(stub)
    ran = cli(
        *"training run fcs-experiments-simple-ddp --repository-url https://github.com/flexaihq/fcs-experiments".split(),
        *"--dataset gpt2-tokenized-wikitext --nodes 2 --accels 8 -- code/causal-language-modeling/train.py".split(),
        *"--do_eval --do_train --dataset_name wikitext --output_dir /output-checkpoint --eval_strategy steps".split(),
    )
    assert ran.code == 0, ran.err
    assert asked(stub, "/sources/git") == {
        "url": "https://github.com/flexaihq/fcs-experiments", "source_name": None, "revision": None,
    }  # fmt: skip
    spec = asked(stub, "/jobs")
    assert (spec["datasets"], spec["min_nodes"], spec["accels"]) == (["gpt2-tokenized-wikitext"], 2, 8)
    assert spec["entry"][:2] == ["code/causal-language-modeling/train.py", "--do_eval"]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (
            ["--source-name", "exp", "--repository-revision", "v1"],
            {"url": None, "source_name": "exp", "revision": "v1"},
        ),
        (["--source", "exp", "--source-revision", "v1"], {"url": None, "source_name": "exp", "revision": "v1"}),
        (["--source", "https://h/r", "-b", "main"], {"url": "https://h/r", "source_name": None, "revision": "main"}),
        (["-u", "git@h:r"], {"url": "git@h:r", "source_name": None, "revision": None}),
    ],
)
def test_the_dialects_of_a_git_source(cli: Cli, stub: Stub, options: list[str], wanted: dict[str, Any]) -> None:
    accept(stub)
    assert cli("training", "run", "x", *options, "--", "train.py").code == 0
    assert asked(stub, "/sources/git") == wanted


def test_all_options_reach_the_spec(cli: Cli, stub: Stub, project: Path) -> None:
    accept(stub)
    options = (
        "-D a -D b -C ck -E A=1 -E B=-x=y -S K=s --max-restarts 0 --priority -5 --time-limit 90m --launcher torchrun"
        " --nodes 2:3 --grow --no-preflight --allow-cpu --allow-torch-change"
        " --grace 5m --one-device-per-worker --engine-option partition=long"
    )
    assert cli("training", "run", "x", *options.split(), "--", "train.py").code == 0
    spec = asked(stub, "/jobs")
    assert spec["datasets"] == ["a", "b"]
    assert spec["checkpoint"] == "ck"
    assert (spec["env"], spec["secrets"]) == ({"A": "1", "B": "-x=y"}, {"K": "s"})
    assert (spec["max_restarts"], spec["priority"], spec["time_limit_s"]) == (0, -5, 5400)
    assert (spec["launcher"], spec["grow"], spec["allow_cpu"]) == ("torchrun", True, True)
    assert spec["allow_torch_change"] is True
    assert (spec["grace_s"], spec["one_device_per_worker"], spec["engine_options"]) == (
        300,
        True,
        {"partition": "long"},
    )


def test_only_missing_chunks_travel_and_ignored_files_do_not(cli: Cli, stub: Stub, project: Path) -> None:
    accept(stub, chunks=True)
    ran = cli("training", "run", "x", "--", "train.py")
    assert ran.code == 0, ran.err
    manifest = asked(stub, "/sources")["manifest"]
    assert [f["path"] for f in manifest["files"]] == [".gitignore", "code/other.py", "train.py"]
    assert len([a for a in stub.asked if a.path.endswith("/store/chunks")]) == 1
    stub.asked.clear()
    accept(stub, chunks=False)
    assert cli("training", "run", "y", "--", "train.py").code == 0
    assert not [a for a in stub.asked if a.path.endswith("/store/chunks")]


def test_an_archive_and_a_single_file(cli: Cli, stub: Stub, project: Path, tmp_path: Path) -> None:
    accept(stub)
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.write(project / "train.py", "wrapped/train.py")
        archive.writestr("__MACOSX/junk", "")
    assert cli("training", "run", "x", "--zip", str(tmp_path / "code.zip"), "--", "train.py").code == 0
    commit = asked(stub, "/sources")
    assert [f["path"] for f in commit["manifest"]["files"]] == ["train.py"]
    assert commit["origin"]["kind"] == "archive"
    stub.asked.clear()
    assert cli("training", "run", "x", "--file", "code/other.py").code == 0
    assert asked(stub, "/jobs")["entry"] == ["other.py"]


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        (["--", "other.py"], "Did you mean 'code/other.py'?"),
        (["--", "tran.py"], "Did you mean 'train.py'?"),
        (["--", "big.bin"], None),
        ([], "No script given"),
        (["--dir", "nowhere", "--", "train.py"], "nowhere"),
        (["--zip", "nowhere.zip", "--", "train.py"], "nowhere.zip"),
        (["--file", "nowhere.py"], "nowhere.py"),
        (["--zip", "train.py", "--", "train.py"], "train.py"),
    ],
)
def test_a_source_that_cannot_work_is_refused_before_anything_is_made(
    cli: Cli, stub: Stub, project: Path, tokens: list[str], told: str | None
) -> None:
    accept(stub)
    ran = cli("training", "run", "x", *tokens)
    if told is None:
        return
    assert ran.code in (2, 3)
    assert told in ran.err
    assert not [a for a in stub.asked if a.path.endswith(("/jobs", "/sources"))]


def test_a_taken_name_is_exit_code_4(cli: Cli, stub: Stub, project: Path) -> None:
    accept(stub)
    stub.routes[f"POST {JOBS}"] = reply(409, NameTaken("There is already a job 'x'.", hint="another").to_wire())
    stub.routes[f"GET {JOBS}"] = reply(body=[])
    ran = cli("training", "run", "x", "--", "train.py")
    assert ran.code == 4
    assert ran.err.endswith("error: There is already a job 'x'.\nhint: another\n")


def follow(stub: Stub, *events: bytes, end: str = "succeeded", **changes: Any) -> None:
    stub.routes[f"GET {JOBS}/{views.ID}/follow"] = stream(*events)
    stub.routes[f"GET {JOBS}/{views.ID}"] = reply(body=views.job(end, **changes))
    stub.routes[f"GET {JOBS}/hello"] = reply(body=views.job(end, **changes))


def page(*lines: dict[str, Any], cursor: int = 1) -> bytes:
    return sse("log", {"lines": list(lines), "cursor": cursor, "more": False}, cursor)


def test_run_and_follow_shows_lines_on_stdout_and_the_rest_on_stderr(cli: Cli, stub: Stub, project: Path) -> None:
    accept(stub)
    running = views.job("running", progress={"step": 1, "total": 4, "fraction": 0.25, "eta_s": 3.0})
    follow(stub, sse("job", running), page(views.line("one"), views.line("two")), sse("end", {}))
    ran = cli("training", "run", "hello", "-f", "--", "train.py")
    assert ran.code == 0, ran.err
    assert ran.out == "one\ntwo\n"
    assert "● running" in ran.err
    assert "25% step 1 of 4, 3.0 s left" in ran.err
    assert ran.err.endswith("succeeded after 1 min 4 s\n")


@pytest.mark.parametrize("status", ["failed", "stopped"])
def test_following_a_job_that_does_not_succeed_ends_with_1_and_the_reason(cli: Cli, stub: Stub, status: str) -> None:
    follow(stub, page(views.line("boom")), sse("end", {}), end=status, reason="ValueError: boom")
    ran = cli("training", "logs", "hello", "-f")
    assert (ran.code, ran.out) == (1, "boom\n")
    assert f"error: Job 'hello' {status}: ValueError: boom\nhint: shoal training inspect hello\n" in ran.err


def test_lines_of_several_workers_say_whose_they_are(cli: Cli, stub: Stub) -> None:
    lines = [views.line("setup", rank=None, node=1), views.line("a", rank=0), views.line("b", rank=3, attempt=2)]
    follow(stub, page(*lines), sse("end", {}), nodes=2, accels=2)
    assert cli("training", "logs", "hello", "-f").out == "[node1] setup\n[rank0] a\n[rank3] b\n"
    assert cli("training", "logs", "hello", "-f", "--attempt", "2").out == "[rank3] b\n"
    assert cli("training", "logs", "hello", "-f", "--rank", "3", "--attempt", "2").out == "b\n"


def test_the_lines_of_a_single_worker_are_left_as_they_are(cli: Cli, stub: Stub) -> None:
    follow(stub, page(views.line("setup", rank=None), views.line("  a")), sse("end", {}))
    assert cli("training", "logs", "hello", "-f").out == "setup\n  a\n"


def test_logs_asks_for_what_it_was_asked_page_by_page(cli: Cli, stub: Stub) -> None:
    stub.routes[f"GET {JOBS}/hello"] = reply(body=views.job())
    first = {"lines": [views.line("one", attempt=3)], "cursor": 7, "more": True}
    stub.will(reply(body=first), reply(body={"lines": [views.line("two", attempt=3)], "cursor": 9, "more": False}))
    ran = cli(
        "training", "logs", "hello", "--node", "1", "--rank", "2", "--attempt", "3", "--since", "2025-01-31T12:00:00Z"
    )
    assert ran.out == "one\ntwo\n"
    query = "node=1&rank=2&since=1738324800.0&attempt=3"
    assert [a.path.rpartition("?")[2] for a in stub.asked[1:]] == [f"after=0&{query}", f"after=7&{query}"]


def test_logs_in_json_is_one_object_per_line(cli: Cli, stub: Stub) -> None:
    follow(stub, page(views.line("one"), views.line("two")), sse("end", {}))
    ran = cli("training", "logs", "hello", "-f", "--json")
    assert [json.loads(text)["text"] for text in ran.out.splitlines()] == ["one", "two"]


def test_ctrl_c_detaches_and_says_how_to_go_on(stub: Stub) -> None:
    def hold(handler: BaseHTTPRequestHandler) -> None:
        stream(page(views.line("one")))(handler)
        stub.release.wait(30)

    stub.routes = {f"GET {JOBS}/hello": reply(body=views.job("running"))}
    stub.routes[f"GET {JOBS}/{views.ID}/follow"] = hold
    command = [sys.executable, "-m", "shoal.cli", "training", "logs", "hello", "-f"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    assert process.stdout is not None
    assert process.stdout.readline() == "one\n"
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "shoal training logs hello -f" in talk
    assert "shoal training stop hello" in talk
    assert "Traceback" not in talk


def test_inspect_in_json_has_the_promised_keys(cli: Cli, stub: Stub) -> None:
    stub.will(reply(body=views.job()))
    found = json.loads(cli("training", "inspect", "hello", "--json").out)
    promised = "id name status attempts nodes accels created_at started_at ended_at exit_code reason progress"
    assert set(promised.split()) <= found.keys()


def test_inspect_for_people_tells_the_story(cli: Cli, stub: Stub) -> None:
    stub.will(reply(body=views.job("failed", reason="node 0: exit code 1\x1b[2J")))
    text = cli("training", "inspect", "hello").out
    for part in (
        "hello  failed",
        views.ID,
        "40% step 40 of 100",
        "train.py --lr 3e-4",
        "folder /p",
        "local",
        "submitted by me",
    ):
        assert part in text
    assert "\x1b" not in text


def test_list_shows_jobs_and_passes_its_filters_on(cli: Cli, stub: Stub) -> None:
    stub.will(reply(body=[views.job("running")]))
    ran = cli("training", "list", "--status", "running", "--search", "hel", "--limit", "3")
    assert stub.asked[0].path.endswith("/jobs?status=running&search=hel&limit=3")
    header, row = ran.out.splitlines()
    assert header.split()[:2] == ["NAME", "STATUS"]
    assert row.split()[:3] == ["hello", "running", "40%"]


def test_several_jobs_are_stopped_and_one_failure_does_not_keep_the_others(cli: Cli, stub: Stub) -> None:
    stub.routes = {f"POST {JOBS}/{name}/stop": reply(body=views.job("stopped", name=name)) for name in "ac"}
    stub.routes[f"POST {JOBS}/b/stop"] = reply(404, NotFound("There is no job 'b'.").to_wire())
    ran = cli("training", "stop", "a", "b", "c", "--json")
    assert ran.code == 3
    assert [j["name"] for j in json.loads(ran.out)] == ["a", "c"]
    assert "error: There is no job 'b'." in ran.err


def test_delete_needs_yes_where_nobody_can_be_asked(cli: Cli, stub: Stub) -> None:
    stub.will(reply(204, b""))
    assert cli("training", "delete", "hello").code == 2
    assert stub.asked == []
    assert cli("training", "delete", "hello", "-y").code == 0
    assert [a.method for a in stub.asked] == ["DELETE"]


@pytest.mark.parametrize(("status", "code"), [("succeeded", 0), ("failed", 1), ("stopped", 1)])
def test_wait_exits_as_the_job_ended(cli: Cli, stub: Stub, status: str, code: int) -> None:
    stub.will(reply(body=views.job("running")), reply(body=views.job(status)))
    assert cli("training", "wait", "hello").code == code


def test_wait_gives_up_with_7(cli: Cli, stub: Stub) -> None:
    stub.will(reply(body=views.job("running")))
    ran = cli("training", "wait", "hello", "--timeout", "0.1s")
    assert ran.code == 7
    assert "still running" in ran.err
