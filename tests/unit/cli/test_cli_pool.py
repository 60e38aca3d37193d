"""`shoal pool`, against a scripted server: what is sent, what is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clirun import Cli
from stubserver import Stub, reply


def machine(name: str = "gpu1", state: str = "up", **more: Any) -> dict[str, Any]:
    return {
        "id": f"mach_{name}", "name": name, "via": "ssh", "user": None, "host": name, "port": None, "address": None,
        "state": state, "kind": "cuda", "slots": 4, "slots_free": 4, "created_at": "2026-01-31T12:00:00Z",
    } | more  # fmt: skip


STEPS = [{"text": "Reaching gpu1 by SSH", "state": "done", "seconds": 0.4}]
PROBLEM = {"text": "its clock is 10 s behind the server's", "fix": "timedatectl set-ntp true", "is_fatal": False}


def test_a_machine_is_followed_until_it_is_in(stub: Stub, cli: Cli) -> None:
    stub.routes = {
        "POST /pool": reply(202, body=machine(state="adding")),
        "GET /pool/machines/mach_gpu1": reply(body=machine(steps=STEPS, problems=[PROBLEM])),
    }
    ran = cli("pool", "add", "ada@gpu1", "--gpus", "0,1", "--port", "2222")
    sent = {k: v for k, v in stub.asked[0].json.items() if v is not None}
    assert sent == {"host": "gpu1", "user": "ada", "gpus": [0, 1], "port": 2222, "labels": {}}
    assert ran.code == 0 and "✓ Reaching gpu1 by SSH (0.4 s)" in ran.err
    assert "timedatectl" in ran.err and "'gpu1' is in the pool with 4 cuda slots." in ran.err


def test_one_that_fails_ends_with_its_cure_and_an_exit_code(stub: Stub, cli: Cli) -> None:
    grave = PROBLEM | {"is_fatal": True, "fix": "ssh-copy-id gpu1"}
    stub.routes = {
        "POST /pool": reply(202, body=machine(state="adding")),
        "GET /pool/machines/mach_gpu1": reply(body=machine(state="failed", problems=[grave])),
    }
    ran = cli("pool", "add", "gpu1")
    assert ran.code == 4 and ran.err.rstrip().endswith("hint: ssh-copy-id gpu1")


def test_a_servers_file_adds_all_it_names(stub: Stub, cli: Cli, tmp_path: Path) -> None:
    stub.routes = {
        "POST /pool": reply(202, body=machine(state="adding")),
        "GET /pool/machines/mach_gpu1": reply(body=machine()),
    }
    (tmp_path / "servers").write_text("10.0.0.5\nada@10.0.0.6:0,2\n")
    assert cli("pool", "add", "--servers-file", str(tmp_path / "servers")).code == 0
    sent = [(a.json["user"], a.json["host"], a.json["gpus"]) for a in stub.asked if a.method == "POST"]
    assert sent == [(None, "10.0.0.5", None), ("ada", "10.0.0.6", [0, 2])]


@pytest.mark.parametrize(
    "words", [[], ["a", "b", "--name", "x"], ["a", "--gpus", "all"], ["-x@a"], ["a", "--gpus", "0", "--slots", "1"]]
)
def test_what_cannot_be_meant_is_refused_before_asking(stub: Stub, cli: Cli, words: list[str]) -> None:
    assert cli("pool", "add", *words).code == 2
    assert stub.asked == []


def test_machines_are_listed_with_their_problems(stub: Stub, cli: Cli) -> None:
    stub.routes = {"GET /pool": reply(body=[machine(state="lost", problems=[PROBLEM])])}
    ran = cli("pool", "list")
    assert "gpu1" in ran.out and "lost" in ran.out and PROBLEM["text"] in ran.out
    assert json.loads(cli("pool", "list", "--json").out)[0]["state"] == "lost"


def test_draining_and_removing_take_several_names_and_do_what_they_can(stub: Stub, cli: Cli) -> None:
    gone = reply(
        404, body={"error": {"code": "not_found", "message": "There is no machine 'b'.", "hint": "shoal pool list"}}
    )
    stub.routes = {
        "PATCH /pool/machines/a": reply(body=machine("a", state="draining")),
        "PATCH /pool/machines/b": gone,
        "DELETE /pool/machines/a": reply(204),
    }
    ran = cli("pool", "drain", "a", "b")
    assert ran.code == 3 and "'a' is drained" in ran.err and "no machine 'b'" in ran.err
    assert cli("pool", "remove", "a", "--force").code == 0
    assert stub.asked[-1].path.endswith("?force=true")


def test_a_check_names_the_slow_one(stub: Stub, cli: Cli) -> None:
    pairs = [{"one": "a", "other": "b", "latency_ms": 0.2, "mb_s": 941.0}]
    found = {"machines": [machine("a")], "pairs": pairs, "slow": ["b is slow to all others"]}
    stub.routes = {"POST /pool/check": reply(body=found)}
    ran = cli("pool", "check", "--no-speed")
    assert ran.code == 0 and "941 MB/s" in ran.out and "b is slow to all others" in ran.err
    assert stub.asked[-1].path.endswith("?speed=false")


def test_the_line_to_paste_is_all_there_is_on_stdout(stub: Stub, cli: Cli) -> None:
    made = {"command": "SHOAL_JOIN=t python3 -c 'x' http://10.0.0.1:1", "expires_at": "2026-01-31T13:00:00Z"}
    stub.routes = {"POST /pool/join-command": reply(201, body=made)}
    ran = cli("pool", "join-command", "--name", "gpu7", "--expires", "1d")
    assert ran.out == f"{made['command']}\n"
    assert (stub.asked[-1].json["name"], stub.asked[-1].json["expires_in_s"]) == ("gpu7", 86400)
