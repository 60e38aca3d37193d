"""`shoal machine`: what is asked of the server, and what is refused before it is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clirun import Cli
from stubserver import Stub, reply

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE5ld0tleU9mVGhlVGVzdE5ld0tleU9mVGhlVGVzdDAw"
LEASES = "/workspaces/default/leases"


def lease(**more: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(
        ["machine", "sandbox", "waiting", "reason", "started_at", "expires_at", "ended_at", "left_s"]
    )
    return {
        **nothing, "id": "lease_1", "name": "box", "status": "running", "login": "box-7f3k", "host": "gpu.example.org", "port": 40022,
        "host_key": KEY, "own_host_key": KEY, "job": "lease-box-7f3k", "accels": 1, "created_by": "ada@example.org",
        "created_at": "2026-01-31T12:00:00Z", "has_password": False, **more,
    }  # fmt: skip


def test_renting_sends_the_keys_and_prints_the_one_line_to_paste(cli: Cli, stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "id.pub").write_text(f"{KEY} ada@example.org\n")
    made = {
        f"POST {LEASES}": reply(body=lease(password="shown-once")),
        f"GET {LEASES}/lease_1": reply(body=lease(left_s=28_800)),
    }
    stub.routes = made
    ran = cli("machine", "rent", "--name", "box", "--time", "8h", "--ssh-key", str(tmp_path / "id.pub"), "--password")
    assert (ran.code, ran.out) == (0, "ssh box-7f3k@gpu.example.org -p 40022\n")
    assert "shown-once" in ran.err and "ends in 8 h" in ran.err
    assert stub.asked[0].json["ssh_keys"] == [KEY] and stub.asked[0].json["time_s"] == 28_800


def test_renting_without_waiting_asks_once_and_says_what_of_the_folder_stays_behind(
    cli: Cli, stub: Stub, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "away").symlink_to(tmp_path / "nowhere")
    source = {"id": "src_1", "manifest_id": "m", "size": 0, "files": 1, "missing": []}
    stub.routes = {
        f"POST {LEASES}": reply(body=lease(status="waiting", waiting="for a slot", password=None)),
        "POST /workspaces/default/sources": reply(201, source),
    }
    ran = cli("machine", "rent", "--no-wait", "--dir", str(tmp_path), "--json")
    assert ran.code == 0 and json.loads(ran.out)["status"] == "waiting"
    assert "skipped: away" in ran.err
    assert [a.path.endswith("/leases") for a in stub.asked if "/leases" in a.path] == [True]
    assert stub.asked[-1].json["source_id"] == "src_1"


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["rent", "--time", "8d"], "at most 7 d", "--time 8h"),
        (["rent", "--time", "soon"], "not a length of time", "8h"),
        (["rent", "--ssh-key", "PRIVATE"], "is a private key", "PRIVATE.pub"),
        (["rent", "--ssh-key", "ABSENT"], "No such file", "ssh-keygen"),
        (["rent", "--source", "a", "--dir", "."], "cannot be combined", ""),
        (["rent", "-b", "main"], "--repository-url", ""),
        (["cp", "a", "b"], "Neither", "LEASE:PATH"),
        (["cp", "a:x", "b:y"], "Both", "LEASE:PATH"),
        (["release"], "Name at least one machine", "machine list"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_next_thing_to_do(
    cli: Cli, stub: Stub, tmp_path: Path, words: list[str], said: str, hint: str
) -> None:
    (tmp_path / "PRIVATE").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    ran = cli("machine", *(str(tmp_path / word) if word.isupper() else word for word in words))
    assert ran.code == 2, ran.err
    assert said in ran.err and hint in ran.err


def test_machines_and_leases_are_listed_together(cli: Cli, stub: Stub) -> None:
    machine = {"name": "local", "kind": "cpu", "slots_total": 2, "slots_free": 1}
    offline = lease(name="old", status="offline", reason="its agent died")
    stub.routes = {
        "GET /machines": reply(body={"machines": [machine]}),
        f"GET {LEASES}": reply(body=[lease(), offline]),
    }
    out = cli("machine", "list").out
    assert "local" in out and "ssh box-7f3k@gpu.example.org -p 40022" in out and "its agent died" in out
