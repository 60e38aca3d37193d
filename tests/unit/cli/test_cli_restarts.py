"""Following a job that is restarted: why the attempt before ended is told, once."""

from __future__ import annotations

import json
from typing import Any

import pytest
import wireviews as views
from clirun import Cli
from stubserver import Stub, reply, stream

JOBS = "/workspaces/default/jobs"


def changed(status: str, attempts: int, cursor: int) -> bytes:
    job = views.job(status, attempts=attempts, progress=None)
    return f"event: job\nid: {cursor}\ndata: {json.dumps(job)}\n\n".encode()


def attempt(number: int, reason: str | None) -> dict[str, Any]:
    return views.job()["attempt_list"][0] | {"number": number, "reason": reason}


@pytest.mark.parametrize(
    "seen",
    [
        [("running", 1), ("queued", 1), ("starting", 2), ("running", 2)],
        [("running", 1), ("starting", 2), ("running", 2)],  # the time in the queue was too short to be seen
        [("running", 2)],  # followed later
    ],
)
def test_the_reason_of_a_restart_is_told_once(cli: Cli, stub: Stub, seen: list[tuple[str, int]]) -> None:
    events = [changed(*state, cursor) for cursor, state in enumerate(seen)]
    stub.routes[f"GET {JOBS}/{views.ID}/follow"] = stream(*events, b"event: end\nid: 9\ndata: {}\n\n")
    attempts = [attempt(1, "rank 0 on node 0: killed by SIGKILL"), attempt(2, None)]
    for name in ("hello", views.ID):
        stub.routes[f"GET {JOBS}/{name}"] = reply(body=views.job("succeeded", attempts=2, attempt_list=attempts))
    ran = cli("training", "logs", "hello", "-f")
    assert ran.err.count("attempt 1 ended: rank 0 on node 0: killed by SIGKILL") == 1
    assert ran.err.index("attempt 1 ended") < ran.err.index("(attempt 2)")
