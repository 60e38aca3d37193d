"""`shoal audit`, against a scripted server: what is sent, what is printed, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from clirun import Cli
from stubserver import Asked, Stub, reply

HEAD = "5d" * 32


def entry(seq: int, **more: Any) -> dict[str, Any]:
    return {
        "seq": seq, "at": "2026-01-31T12:00:00Z", "actor": "ada@example.org", "key_id": "key_1", "address": "10.0.0.9",
        "request": "req_1", "action": "job.stop", "object": "hello", "object_id": "job_1", "workspace": "default",
        "workspace_id": "ws_1", "result": "ok", "detail": "", "previous": "0" * 64, "hash": HEAD, **more,
    }  # fmt: skip


def sent_by(asked: Asked) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(asked.path).query))


def test_the_list_sends_its_filters_and_shows_no_control_characters(cli: Cli, stub: Stub) -> None:
    stub.routes = {"GET /admin/audit": reply(body=[entry(2, object="\x1b[31mred"), entry(1)])}
    ran = cli(
        "audit", "list", "--actor", "ada@example.org", "--action", "job", "--workspace", "default", "--since", "1d"
    )
    assert ran.code == 0, ran.err
    assert "job.stop" in ran.out and "10.0.0.9" in ran.out and "\x1b" not in ran.out
    sent = sent_by(stub.asked[0])
    assert (sent["actor"], sent["action"], sent["workspace"], sent["limit"]) == (
        "ada@example.org",
        "job",
        "default",
        "100",
    )
    assert "since" in sent
    assert [e["seq"] for e in json.loads(cli("audit", "list", "--json").out)] == [2, 1]


def test_a_long_list_is_fetched_in_pages(cli: Cli, stub: Stub) -> None:
    stub.will(reply(body=[entry(n) for n in range(1500, 500, -1)]), reply(body=[entry(n) for n in range(500, 400, -1)]))
    assert len(json.loads(cli("audit", "list", "--limit", "1200", "--json").out)) == 1100
    assert [(sent_by(a)["limit"], sent_by(a).get("before")) for a in stub.asked] == [("1000", None), ("200", "501")]
    assert cli("audit", "list", "--limit", "0").code == 2


def test_verify_prints_the_head_or_the_entries_that_were_changed(cli: Cli, stub: Stub) -> None:
    whole = {"entries": 812, "whole": True, "seq": 812, "head": HEAD, "problems": []}
    stub.routes = {"GET /admin/audit/verify": reply(body=whole)}
    ran = cli("audit", "verify")
    assert (ran.code, ran.out) == (0, f"812:{HEAD}\n")
    assert "intact: 812 entries" in ran.err
    problems = [{"seq": 3, "what": "its contents do not match its hash"}, {"seq": None, "what": "the trigger is gone"}]
    stub.routes = {"GET /admin/audit/verify": reply(body=whole | {"whole": False, "problems": problems})}
    ran = cli("audit", "verify", "--head", f"812:{HEAD}")
    assert ran.code == 1 and sent_by(stub.asked[-1])["head"] == f"812:{HEAD}"
    assert ran.out == "entry 3: its contents do not match its hash\nthe log: the trigger is gone\n"
    assert cli("audit", "verify", "--json").code == 1


def test_export_writes_lines_to_stdout_or_to_a_whole_private_file(cli: Cli, stub: Stub, tmp_path: Path) -> None:
    lines = b"".join(json.dumps(entry(n)).encode() + b"\n" for n in (1, 2))
    stub.routes = {"GET /admin/audit/export": reply(body=lines)}
    ran = cli("audit", "export", "--action", "job & more")
    assert (ran.code, ran.out) == (0, lines.decode())
    assert sent_by(stub.asked[-1]) == {"action": "job & more"}
    target = tmp_path / "audit.jsonl"
    ran = cli("audit", "export", "--output", str(target))
    assert ran.code == 0 and "Wrote 2 entries" in ran.err
    assert target.read_bytes() == lines and target.stat().st_mode & 0o777 == 0o600
    assert cli("audit", "export", "--output", str(target)).code != 0
    assert cli("audit", "export", "--output", str(target), "--force").code == 0
