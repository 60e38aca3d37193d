"""`training drill` and `training diff` against a scripted server: what is refused, what is sent, what is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import wireviews as views
from clirun import Cli
from stubserver import Stub, reply

from shoal.core.drills import VARIABLE, Plan

JOBS = "/workspaces/default/jobs"
DIFF = {
    "first": "a", "second": "b", "samples_known": True, "first_step": 1, "last_step": 9, "notes": ["something\x1b[2J is not known"],
    "changes": [{"section": "settings", "name": "--lr", "first": "0.1", "second": "0.2"}]
    + [{"section": "environment", "name": f"p{n}", "first": "1", "second": "2"} for n in range(12)],
    "files": [{"path": "train.py", "kind": "changed", "diff": "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-x = 1\n+x = 2"}],
    "metric": {"name": "loss", "step": 2, "first": 0.5, "second": 1.0, "relative": 0.5},
    "samples": {"loader": "train", "step": 3, "first": [4, 7], "second": [1, 2]},
    "causes": [{"what": "--lr: 0.1 → 0.2", "why": "it shows there", "section": "settings", "name": "--lr"},
               {"what": "train.py (changed)", "why": "so does that", "section": "code", "name": "train.py"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["hello"], "No faults given"),
        (["--kill", "rank0@3"], "No job or script given"),
        (["hello", "world", "--kill", "rank0@3"], "Unexpected argument 'world'"),
        (["hello", "--kill", "rank1@3"], "the job has rank 0 only"),
        (["hello", "--kill", "rank0@3", "--accels", "2"], "its options cannot be changed"),
        (["--kill", "rank2@3", "--accels", "2", "--", "train.py"], "ranks 0 to 1"),
    ],
)
def test_what_cannot_be_drilled_is_said_before_anything_is_sent(
    stub: Stub, cli: Cli, words: list[str], told: str
) -> None:
    stub.routes = {f"GET {JOBS}/hello": reply(body=views.job())}
    ran = cli("training", "drill", *words)
    assert ran.code == 2 and told in ran.err and "hint:" in ran.err
    assert all(asked.method == "GET" for asked in stub.asked)


def test_a_spec_in_a_file_is_drilled_with_the_code_beside_it(
    stub: Stub, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "job.json").write_text(json.dumps({"name": "hello", "entry": ["train.py"], "accels": 2}))
    ran = cli("training", "drill", "job.json", "--kill", "rank2@3")
    assert ran.code == 2 and "the job has ranks 0 to 1" in ran.err and not stub.asked
    (tmp_path / "bad.json").write_text("[1]")
    for command in (["training", "drill", "bad.json", "--kill", "rank0@3"], ["check", "bad.json"]):
        ran = cli(*command)
        assert ran.code == 2 and "bad.json is not a job's spec" in ran.err and "inspect JOB --json" in ran.err


def test_a_copy_that_fails_by_itself_is_told_of_and_both_are_gone(stub: Stub, cli: Cli) -> None:
    copy = views.job("failed", id="job_copy", name="copy", reason="ValueError: no data")
    stub.routes = {
        f"GET {JOBS}/hello": reply(body=views.job(spec=views.spec(env={"A": "1"}, priority=7))),
        f"POST {JOBS}": reply(201, copy),
        f"GET {JOBS}/job_copy": reply(body=copy),
        f"GET {JOBS}/job_copy/logs": reply(body={"lines": [], "cursor": 0, "more": False}),
        f"GET {JOBS}/job_copy/metrics": reply(body={"metrics": {}, "cursor": 0, "starts": {}, "ghosts": {}}),
        f"GET {JOBS}/job_copy/ledger": reply(body=[]),
        "GET /workspaces/default/checkpoints": reply(body=[]),
        f"DELETE {JOBS}/job_copy": reply(204),
    }
    ran = cli("training", "drill", "hello", "--kill", "rank0@30", "--time-limit", "10m")
    assert ran.code == 1 and "ValueError: no data" in ran.err
    (sent,) = [asked.json for asked in stub.asked if asked.method == "POST"]
    assert sent["priority"] == -100 and sent["time_limit_s"] == 600 and sent["env"]["A"] == "1"
    assert sent["name"].startswith("hello-drill-") and Plan.load(sent["env"][VARIABLE]) == Plan(50)
    assert [asked.path.rpartition("/")[2] for asked in stub.asked if asked.method == "DELETE"] == ["job_copy"]


def test_a_difference_is_told_with_its_cause_first_and_lines_where_asked_for(stub: Stub, cli: Cli) -> None:
    stub.routes = {f"GET {JOBS}/a/diff/b": reply(body=DIFF)}
    ran = cli("training", "diff", "a", "b")
    assert ran.code == 1
    lines = ran.out.splitlines()
    assert lines[0] == "Different samples from step 3 on: a used 4, 7, …, b 1, 2, … (train)."
    assert lines[1] == "loss differs from step 2 on: 0.5 in a, 1.0 in b."
    assert lines[2:6] == [
        "Likely cause: --lr: 0.1 → 0.2",
        "  it shows there",
        "Or: train.py (changed)",
        "  so does that",
    ]
    assert "  --lr: 0.1 → 0.2" in lines and "  and 2 packages more (see --json)" in lines and "+x = 2" not in ran.out
    assert "training diff a b --code" in ran.err and "\x1b" not in ran.err
    assert "    +x = 2" in cli("training", "diff", "a", "b", "--code").out
    assert json.loads(cli("training", "diff", "a", "b", "--json").out)["metric"]["step"] == 2


def test_equal_jobs_are_told_to_be_so_and_the_exit_code_says_it(stub: Stub, cli: Cli) -> None:
    same = DIFF | {"metric": None, "samples": None, "causes": [], "changes": [], "files": [], "notes": []}
    stub.routes = {f"GET {JOBS}/a/diff/b": reply(body=same)}
    ran = cli("training", "diff", "a", "b")
    assert ran.code == 0 and "identical, bit by bit, from step 1 to 9" in ran.out and "No known differences" in ran.out
