"""A node that only tries a job: how its script is started, that nothing is kept, and what its report becomes."""

import json

import pytest

from shoal.agent.node import preflight
from shoal.agent.node.workdir import WorkDir
from shoal.agent.wire import JoinReply
from shoal.agent.workers.runtime import Command

USUAL = Command(["/usr/bin/python", "-u", "train.py", "--lr", "1"], per_rank=True, script="train.py")
ENDED = {"exit_code": 1, "failed_rank": 0, "reason": "killed by SIGKILL (out of memory?)", "told": False}


@pytest.fixture
def work(tmp_path):
    work = WorkDir(tmp_path / "node")
    work.spool("sdk").mkdir(parents=True)
    return work


@pytest.fixture
def join():
    return JoinReply({"ready": True, "env": {preflight.VARIABLE: json.dumps({"nodes": 2})}})


def told(work, join, text=None, **changes):
    if text is not None:
        (work.spool("sdk") / "preflight.json").write_text(text)
    return preflight.with_report(work, join, ENDED | changes, lambda t: t.replace("hunter2", "***")).get("preflight")


def test_other_jobs_are_left_alone(work):
    usual, bare = JoinReply({"ready": True}), Command(["program"], per_rank=False)
    assert preflight.command(USUAL, usual) is USUAL and preflight.command(bare, usual) is bare
    assert preflight.env(usual, "/s", "/o") == {} and told(work, usual) is None
    assert preflight.out(work, usual) == work.root / "output-checkpoint"


def test_its_script_runs_below_the_launcher_that_is_told_where_to_report(work, join):
    python, unbuffered, launcher, *words = preflight.command(USUAL, join).argv
    assert [python, unbuffered, *words] == USUAL.argv and launcher.endswith("preflight/launch.py")
    asked = json.loads(preflight.env(join, "/spool", "/output-checkpoint")[preflight.VARIABLE])
    assert asked == {"nodes": 2, "report": "/spool/preflight.json", "output": "/output-checkpoint"}
    assert not preflight.out(work, join).exists()


def test_its_report_goes_with_its_end_without_secrets(work, join):
    found = {"rule": "crash", "message": "KeyError: 'hunter2'"}
    assert told(work, join, json.dumps({"complete": True, "findings": [found]}))["findings"] == [
        {"rule": "crash", "message": "KeyError: '***'"}
    ]


def test_a_death_without_a_report_is_a_finding_itself(work, join):
    [killed] = told(work, join)["findings"]
    assert (killed["rule"], killed["message"]) == ("killed", ENDED["reason"])
    [setup] = told(work, join, failed_rank=None, reason="pip: no such package")["findings"]
    assert (setup["rule"], setup["severity"], setup["message"]) == ("environment", "error", "pip: no such package")
    assert told(work, join, told=True)["findings"] == []


@pytest.mark.parametrize("text", ["", "[]", '{"findings": 3}', "{", "x" * (2 << 20)])
def test_what_is_no_report_is_taken_for_none(work, join, text):
    assert told(work, join, text, exit_code=0) == {"complete": False, "findings": []}


def test_a_link_is_not_followed(work, join, tmp_path):
    (tmp_path / "elsewhere").write_text('{"complete": true, "findings": [], "facts": {"stolen": 1}}')
    (work.spool("sdk") / "preflight.json").symlink_to(tmp_path / "elsewhere")
    assert told(work, join, exit_code=0) == {"complete": False, "findings": []}
