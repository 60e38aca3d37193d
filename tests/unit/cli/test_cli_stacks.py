"""`training stacks`, what `why` says of a job that stands still, and `--grow`: what is sent, what is told."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from clirun import Cli
from stubserver import Stub, reply

JOB = "/workspaces/default/jobs/hello"
FOUND = {
    "order": "ord_2", "at": "2026-01-31T12:00:00Z", "attempt": 1, "text": "…", "complete": True,
    "groups": [
        {"ranks": [0, 1, 3], "where": "wait in all_reduce, called at train.py:41", "frames": ["all_reduce (torch/d.py:1)"]},
        {"ranks": [2], "where": "is in __getitem__ at data.py:7", "frames": ["__getitem__ (data.py:7)"]},
    ],
}  # fmt: skip


def answers(stub: Stub, *found: dict[str, Any]) -> None:
    """Serve these answers to requests for stacks, one after the other; the last one is repeated."""
    turns = itertools.chain(found, itertools.repeat(found[-1]))
    stub.routes = {
        f"POST {JOB}/stacks": reply(202, {"order": "ord_2"}),
        f"GET {JOB}/stacks": lambda asked: reply(body=next(turns))(asked),
    }


def test_stacks_waits_for_the_answer_to_its_own_question_and_prints_it(stub: Stub, cli: Cli) -> None:
    answers(stub, FOUND | {"order": "ord_1"}, FOUND | {"complete": False}, FOUND)
    ran = cli("training", "stacks", "hello")
    assert ran.code == 0 and ran.err == ""
    assert ran.out.splitlines() == [
        "ranks 0, 1, 3 wait in all_reduce, called at train.py:41",
        "    all_reduce (torch/d.py:1)",
        "rank 2 is in __getitem__ at data.py:7",
        "    __getitem__ (data.py:7)",
    ]
    answers(stub, FOUND)
    assert json.loads(cli("training", "stacks", "hello", "--json").out)["groups"][1]["ranks"] == [2]


def test_a_job_that_stands_still_is_explained_without_a_start_to_foretell(stub: Stub, cli: Cli) -> None:
    told = {"job": "hello", "status": "running", "reason": "stalled", "text": "it is running, but no line for 300 s",
            "evidence": ["rank 2 is in __getitem__ at data.py:7"]}  # fmt: skip
    stub.routes = {f"GET {JOB}/why": reply(body=told)}
    assert cli("training", "why", "hello").out.splitlines() == [
        "hello: it is running, but no line for 300 s",
        "  rank 2 is in __getitem__ at data.py:7",
        "To see the workers' current stacks: shoal training stacks hello",
    ]


@pytest.mark.parametrize("nodes", [[], ["--nodes", "2"]])
def test_growing_without_a_range_is_refused_before_anything_is_sent(stub: Stub, cli: Cli, nodes: list[str]) -> None:
    ran = cli("training", "run", "x", *nodes, "--grow", "--", "train.py")
    assert ran.code == 2 and "--grow needs a range of nodes" in ran.err and "--grow" in ran.err.splitlines()[-1]
    assert stub.asked == []
