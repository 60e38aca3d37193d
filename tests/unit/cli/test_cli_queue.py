"""`shoal queue`, `training why` and `training change`, against a scripted server: what is sent, what is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
import wireviews as views
from clirun import Cli
from stubserver import Stub, reply

JOB = "/workspaces/default/jobs/hello"
WHY = {
    "job": "hello", "status": "queued", "reason": "slots", "text": "next in line; needs 4 slots, 2 free now",
    "evidence": ["'first' holds 6 and ends in about 10 min"], "place": 1, "starts_at": "2999-01-31T12:00:00Z", "sure": False,
    "suggestion": {"what": "with 1 slot per node it would start now", "command": "shoal training change hello --accels 1"},
}  # fmt: skip
QUOTAS = [
    {"workspace_id": f"ws_{n}", "workspace": "default", "owner": f"{n}@example.org", "slots": s, "weight": 1.0, "in_use": 0,
     "queued": 0}
    for n, s in (("ada", 4), ("bob", None))
]  # fmt: skip


def test_why_prints_reason_evidence_start_and_the_command_to_type(stub: Stub, cli: Cli) -> None:
    stub.routes = {f"GET {JOB}/why": reply(body=WHY)}
    lines = cli("training", "why", "hello").out.splitlines()
    assert lines[0] == "hello: next in line; needs 4 slots, 2 free now"
    assert lines[1] == "  'first' holds 6 and ends in about 10 min"
    assert lines[2].startswith("Likely start: in ") and lines[2].endswith("(a guess: not all durations are known)")
    assert lines[3:] == ["With 1 slot per node it would start now:", "  shoal training change hello --accels 1"]
    assert json.loads(cli("training", "why", "hello", "--json").out)["reason"] == "slots"
    stub.routes = {f"GET {JOB}/why": reply(body=WHY | {"suggestion": None, "starts_at": None})}
    assert "unknown\nNo change of the job would start it now." in cli("training", "why", "hello").out


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (["--priority", "-3"], {"priority": -3}),
        (["--nodes", "1:4", "--accels", "2"], {"min_nodes": 1, "max_nodes": 4, "accels": 2}),
        (["--time-limit", "2h"], {"time_limit_s": 7200}),
        (["--time-limit", "none", "--any-machine"], {"time_limit_s": 0, "exclude": []}),
        (["--exclude", "x", "--exclude", "y"], {"exclude": ["x", "y"]}),
    ],
)
def test_only_what_is_given_is_changed(stub: Stub, cli: Cli, options: list[str], sent: dict[str, Any]) -> None:
    stub.routes = {f"PATCH {JOB}": reply(body=views.job("queued"))}
    assert cli("training", "change", "hello", *options).code == 0
    assert {k: v for k, v in stub.asked[-1].json.items() if v is not None} == sent


def test_a_change_of_nothing_or_of_opposites_is_refused_before_asking(stub: Stub, cli: Cli) -> None:
    ran = cli("training", "change", "hello")
    assert ran.code == 2 and "--priority 10" in ran.err
    assert cli("training", "change", "hello", "--any-machine", "--exclude", "x").code == 2
    assert cli("queue", "quota", "default", "--slots", "1", "--no-limit").code == 2
    assert cli("queue", "quota", "--slots", "1").code == 2
    assert stub.asked == []


def test_a_quota_is_set_by_owner_and_name_where_a_name_is_not_enough(stub: Stub, cli: Cli) -> None:
    stub.routes = {"GET /admin/quotas": reply(body=QUOTAS), "PATCH /admin/quotas/ws_bob": reply(body=QUOTAS[1])}
    assert cli("queue", "quota", "bob@example.org/default", "--weight", "2").code == 0
    assert stub.asked[-1].json == {"slots": None, "unlimited": False, "models": {}, "weight": 2.0}
    words = ["--model", "H100=8", "--model", "A100 80GB=none"]
    assert cli("queue", "quota", "bob@example.org/default", *words).code == 0
    assert stub.asked[-1].json["models"] == {"H100": 8, "A100 80GB": None}
    refused = cli("queue", "quota", "bob@example.org/default", "--model", "H100")
    assert refused.code == 2 and "--model H100=8" in refused.err
    shown = cli("queue", "quota").out.splitlines()
    assert [line.split()[2] for line in shown] == ["QUOTA", "4", "-"]
    missing = cli("queue", "quota", "defalt")
    assert missing.code == 3 and "Did you mean 'default'?" in missing.err


def test_the_queue_names_ones_own_jobs_only(stub: Stub, cli: Cli) -> None:
    row = {"place": 1, "job_id": None, "job": None, "workspace": None, "priority": 0, "min_nodes": 1, "max_nodes": 4, "accels": 2,
           "since": views.CREATED, "waits": "next in line"}  # fmt: skip
    mine = row | {
        "place": 2,
        "job_id": views.ID,
        "job": "hello",
        "workspace": "default",
        "waits": "place 2 in the queue",
    }
    share = {"workspace": "default", "slots": 8, "weight": 2.0, "in_use": 4, "used_slot_hours": 1.5}
    body = {"slots_total": 8, "slots_free": 0, "running": 2, "queued": 3, "rows": [row, mine], "shares": [share]}
    stub.routes = {"GET /queue": reply(body=body)}
    ran = cli("queue", "show")
    assert "(not yours)" in ran.out and "1:4 × 2" in ran.out and "place 2 in the queue" in ran.out
    assert "and 1 more: shoal queue show --limit 3" in ran.err
    assert "default: uses 4 slots of at most 8, weight 2, 1.5 slot-hours used recently" in ran.err


def test_a_simulation_sends_a_wish_and_tells_what_it_would_cost(stub: Stub, cli: Cli) -> None:
    body = {"starts_now": False, "starts_at": None, "sure": True, "place": 2, "text": "place 2 in the queue",
            "preempts": ["low"], "delays": 3}  # fmt: skip
    stub.routes = {"POST /workspaces/default/queue/simulate": reply(body=body)}
    ran = cli("queue", "simulate", "--accels", "4", "--time-limit", "30m")
    assert stub.asked[-1].json["time_limit_s"] == 1800 and stub.asked[-1].json["accels"] == 4
    assert ran.out.splitlines() == [
        "Place 2 in the queue.",
        "Likely start: unknown",
        "Would be preempted (after saving): low",
        "3 jobs would start later.",
    ]
