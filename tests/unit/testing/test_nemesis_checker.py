"""The checker of the nemesis: it says nothing of a sound run, and names each planted violation."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.testing.nemesis.checker import check
from shoal.testing.nemesis.faults import KINDS
from shoal.testing.nemesis.observe import wait_for_standstill
from shoal.testing.nemesis.report import FAULTS, TESTS, as_markdown, table

JOB = "job_1"
STEPS = 4
T = "2026-01-01T00:00:{:02d}+00:00"
MS = 1_767_225_600_000


def event(seq: int, kind: str, second: int) -> dict[str, Any]:
    return {"seq": seq, "kind": kind, "attempt": 1, "at": T.format(second)}


def operation(kind: str, subject: str, result: str = "ok", **more: Any) -> dict[str, Any]:
    plain = {"args": {}, "answer": {}, "began": 1.0, "ended": 2.0, "code": None, "message": None}
    return {"kind": kind, "subject": subject, "result": result, **plain, **more}


HISTORY: dict[str, Any] = {
    "operations": [
        operation("submit", "job-1", answer={"id": JOB}),
        operation("push", "data-1", args={"digest": "d1"}),
        operation("key", "key-1"),
        operation("key", "key-2"),
        operation("revoke", "key-2"),
        operation("submit", "job-9", "maybe"),
        operation("submit", "job-8", answer={"id": "job_8"}),
        operation("delete", "job-8", args={"id": "job_8"}),
        operation("sweep", "sweep-1", answer={"id": "swp_1"}),
    ],
    "faults": [{"id": "F1", "began": 0.5, "ended": 1.0, "recovered_s": 0.1}],
    "shown": {JOB: {f"1/0/0/step 1/{STEPS}": 1.5}},
    "notes": [],
}
FOUND: dict[str, Any] = {
    "jobs": {
        JOB: {
            "name": "job-1",
            "kind": "job",
            "status": "succeeded",
            "steps": STEPS,
            "attempts": [
                {
                    "number": 1,
                    "result": "succeeded",
                    "created_at": T.format(0),
                    "ended_at": T.format(9),
                    "nodes": [{"index": 0, "state": "exited"}],
                }
            ],
            "events": [
                event(1, "queued", 0),
                event(2, "starting", 1),
                event(3, "running", 2),
                event(4, "attempt_ended", 9),
                event(5, "succeeded", 9),
            ],
            "lines": [f"1/0/0/step {step}/{STEPS}" for step in range(1, STEPS + 1)],
            "points": [[step, 1 / step] for step in range(1, STEPS + 1)],
        }
    },
    "witness": {JOB: [[1, 0, 0, step, 0.0] for step in range(1, STEPS + 1)]},
    "datasets": {"data-1": "d1"},
    "keys": ["key-1"],
    "sweeps": [{"id": "swp_1", "name": "sweep-1", "status": "succeeded", "trials": ["done"]}],
    "ledger": [
        {
            "job_id": JOB, "attempt": 1, "node": 0, "machine": "m", "slots": 2,
            "start_ms": MS + 1000, "end_ms": MS + 9000, "slot_ms": 16_000,
        }
    ],
    "ledger_open": 0,
    "ledger_problems": [],
    "check_problems": [],
    "slots": 4,
    "left": [],
    "stuck": [],
}  # fmt: skip


def test_a_sound_run_has_no_findings():
    assert check(HISTORY, FOUND) == []


def _job(found: dict[str, Any]) -> dict[str, Any]:
    return found["jobs"][JOB]


def _entry(found: dict[str, Any], **change: Any) -> dict[str, Any]:
    return found["ledger"][0] | change


PLANTED: dict[str, tuple[str, Callable[[dict[str, Any], dict[str, Any]], object]]] = {
    "an acknowledged job is gone": ("lost", lambda h, f: f["jobs"].clear()),
    "a job is there twice": ("doubled", lambda h, f: f["jobs"].update(job_2=copy.deepcopy(_job(f)))),
    "an acknowledged dataset is gone": ("lost", lambda h, f: f["datasets"].clear()),
    "a dataset has other bytes": ("lost", lambda h, f: f["datasets"].update({"data-1": "d2"})),
    "an acknowledged key is gone": ("lost", lambda h, f: f["keys"].clear()),
    "a revoked key is back": ("lost", lambda h, f: f["keys"].append("key-2")),
    "a deleted job is back": ("lost", lambda h, f: f["jobs"].update(job_8=_job(f) | {"name": "job-8"})),
    "a sweep is gone": ("lost", lambda h, f: f["sweeps"].clear()),
    "a sweep succeeded with a trial that runs": ("illegal", lambda h, f: f["sweeps"][0]["trials"].append("running")),
    "a stop was forgotten": (
        "lost",
        lambda h, f: (h["operations"].append(operation("stop", "job-1")), _job(f).update(status="running")),
    ),
    "a line is gone": ("lost", lambda h, f: _job(f)["lines"].pop(1)),
    "the last line is gone": ("lost", lambda h, f: _job(f)["lines"].pop()),
    "a line is there twice": ("doubled", lambda h, f: _job(f)["lines"].append(_job(f)["lines"][0])),
    "a line was shown and is gone": ("lost", lambda h, f: h["shown"][JOB].update({"1/0/0/other": 3.0})),
    "a point is gone": ("lost", lambda h, f: _job(f)["points"].pop(0)),
    "a point is there twice": ("doubled", lambda h, f: _job(f)["points"].append([1, 1.0])),
    "a point has another value": ("lost", lambda h, f: _job(f)["points"].__setitem__(1, [2, 7.0])),
    "an ended job runs again": ("illegal", lambda h, f: _job(f)["events"].append(event(6, "running", 9))),
    "an event is gone": ("lost", lambda h, f: _job(f)["events"].pop(3)),
    "two attempts succeeded": (
        "illegal",
        lambda h, f: _job(f)["attempts"].append(_job(f)["attempts"][0] | {"number": 2}),
    ),
    "an attempt is gone": ("lost", lambda h, f: _job(f)["attempts"][0].update(number=2)),
    "the same time is charged twice": ("doubled", lambda h, f: f["ledger"].append(_entry(f, start_ms=MS + 5000))),
    "slots are used twice": ("doubled", lambda h, f: f["ledger"].append(_entry(f, job_id="job_8", slots=3))),
    "time after the end is charged": ("ledger", lambda h, f: f["ledger"][0].update(end_ms=MS + 60_000)),
    "a successful attempt is not charged": ("ledger", lambda h, f: f["ledger"].clear()),
    "the sum of an entry is wrong": ("ledger", lambda h, f: f["ledger"][0].update(slot_ms=1)),
    "an interval stays open": ("ledger", lambda h, f: f.update(ledger_open=1)),
    "the ledger does not verify": ("ledger", lambda h, f: f["ledger_problems"].append("entry 3 was changed")),
    "a process is left": ("left", lambda h, f: f["left"].append("123 python train.py")),
    "a job never ends": ("stuck", lambda h, f: f["stuck"].append("job-1")),
    "the server does not recover": ("stuck", lambda h, f: h["faults"][0].update(recovered_s=None)),
    "the server answers 500": (
        "error",
        lambda h, f: h["operations"].append(operation("read", "lists", "refused", code="internal")),
    ),
    "a write is acknowledged after a failed flush": (
        "lost",
        lambda h, f: h["notes"].append({"at": 2.0, "kind": "acknowledged", "subject": "key-9", "what": "x"}),
    ),
    "the server leaks files": (
        "leak",
        lambda h, f: f.update(last_server={"files": 500, "rss": 0}, new_server={"files": 30, "rss": 0}),
    ),
}


@pytest.mark.parametrize("violation", PLANTED)
def test_a_planted_violation_is_named(violation: str):
    history, found = copy.deepcopy(HISTORY), copy.deepcopy(FOUND)
    kind, plant = PLANTED[violation]
    plant(history, found)
    assert kind in {finding.kind for finding in check(history, found)}


def test_the_table_counts_rounds_and_blames_the_fault_before_a_finding():
    faults = [
        {"id": "F1", "began": 1.0, "recovered_s": 2.0},
        {"id": "F5-io", "began": 10.0, "recovered_s": 4.0},
        {"id": "F1", "began": 20.0, "recovered_s": None},
    ]
    findings = [{"kind": "lost", "at": 12.0}, {"kind": "stuck", "at": 21.0}, {"kind": "doubled", "at": None}]
    tests = [("tests.integration.test_clock::test_a_changed_system_clock_ends_no_job_and_revives_no_key", True)]
    rows = table([{"faults": faults, "findings": findings}], tests)
    assert (rows["F1"].rounds, rows["F1"].other, rows["F1"].seconds) == (2, 1, [2.0])
    assert (rows["F5"].rounds, rows["F5"].lost) == (1, 1)
    assert (rows["F28"].rounds, rows["F28"].lost, rows["F28"].doubled) == (3, 1, 1)
    assert rows["F18"].rounds == 1
    printed = as_markdown(rows).splitlines()
    assert printed[2] == "| F1 | server killed with SIGKILL | 2 | 0 | 0 | 1 | 2.0, 2.0 |"
    assert "| F3 | power cut of the server's disk | not run | – | – | – | – |" in printed


def test_a_slow_end_is_waited_for_and_a_standstill_is_reported():
    shrinking = [{"job-1": "running", "job-2": n} for n in range(40)] + [{}]
    took, stuck = wait_for_standstill(lambda: shrinking.pop(0), 0.1, every_s=0.005)
    assert stuck == [] and shrinking == []
    took, stuck = wait_for_standstill(lambda: {"job-3": "queued"}, 0.05, every_s=0.005)
    assert stuck == ["job-3"] and took >= 0.05


def test_every_fault_in_the_table_has_a_test_or_can_be_injected_and_each_test_exists():
    root = Path(__file__).resolve().parents[3]
    run = re.findall(r"^  (tests/\S+)", (root / "scripts" / "soak").read_text(), re.MULTILINE)
    files = [
        file for one in run for file in ((root / one).rglob("test_*.py") if (root / one).is_dir() else [root / one])
    ]
    known = "\n".join(
        f"{'.'.join(file.relative_to(root).with_suffix('').parts)}::{line}"
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if "def test_" in line
    )
    for id, parts in TESTS.items():
        for part in parts:
            assert part.partition("[")[0] in known, f"{id}: there is no test {part}"
    assert {*TESTS, *(kind.partition("-")[0] for kind in KINDS), "F28"} == set(FAULTS)


def test_the_documentation_has_the_table_with_every_fault():
    page = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "reliability.md"
    rows = re.findall(r"^\| (F\d+) \| (.+?) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(rows) == FAULTS
