"""The SDK's part of verify-resume: when a run ends or kills itself, and what it says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.core.errors import UsageError
from shoal.sdk.verify import Verify


class Run:
    """Remembers what it is asked for; one rank of a run that saves at once."""

    def __init__(self, *, is_main=True, resumed=False):
        self.is_main, self.resumed = is_main, resumed
        self.output_dir = Path("/nonexistent")
        self.calls = []

    def checkpoint(self, wait=False):
        self.calls.append(("checkpoint", wait))

    def finish(self):
        self.calls.append("finish")


class Iterations:
    """The iteration ends when told."""

    def __init__(self):
        self.actions = []

    def at_iteration_end(self, action):
        self.actions.append(action)

    def end(self):
        for action in self.actions:
            action()


def asked(attempt="1", **values):
    return Verify.from_env({"SHOAL_VERIFY": json.dumps(values), "SHOAL_ATTEMPT": attempt})


def test_an_ordinary_run_is_left_alone():
    assert Verify.from_env({}) is None


@pytest.mark.parametrize("text", ["{", "3", "{}", '{"stop_at": "x"}'])
def test_what_is_not_understood_is_said(text):
    with pytest.raises(UsageError, match="SHOAL_VERIFY"):
        Verify.from_env({"SHOAL_VERIFY": text})


def test_at_the_last_step_it_saves_and_ends_when_the_iteration_is_over(capsys):
    verify, run, training = asked(stop_at=3), Run(), Iterations()
    for step in (1, 2, 3):
        verify.after_step(run, training, step)
    assert run.calls == [] and len(training.actions) == 1
    with pytest.raises(SystemExit) as ended:
        training.end()
    assert ended.value.code == 0 and run.calls == [("checkpoint", True), "finish"]
    assert [json.loads(line.partition(": ")[2]) for line in capsys.readouterr().err.splitlines()] == [
        {"event": "started", "step": 0},
        {"event": "stopped", "step": 3},
    ]


def test_other_ranks_save_and_end_without_a_word(capsys):
    verify, run, training = asked(stop_at=1, kill_at=None), Run(is_main=False), Iterations()
    verify.after_step(run, training, 1)
    with pytest.raises(SystemExit):
        training.end()
    assert run.calls == [("checkpoint", True), "finish"] and capsys.readouterr().err == ""


def test_other_ranks_save_and_go_on_when_the_first_dies():
    verify, run, training = asked(stop_at=9, kill_at=2), Run(is_main=False), Iterations()
    verify.after_step(run, training, 2)
    training.end()
    assert run.calls == [("checkpoint", True)]


def test_a_later_attempt_is_not_killed_again(capsys):
    verify, training = asked("2", stop_at=9, kill_at=2), Iterations()
    verify.after_step(Run(resumed=True), training, 3)
    verify.after_step(Run(resumed=True), training, 2)
    assert training.actions == []
    assert '"resumed", "step": 2' in capsys.readouterr().err


def test_a_script_that_prepares_nothing_ends_and_says_so(capsys):
    with pytest.raises(SystemExit):
        asked(stop_at=1).after_step(Run(), None, 1)
    assert '"unprepared"' in capsys.readouterr().err


def test_the_first_rank_dies_of_sigkill_after_its_checkpoint():
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_sdk_verify import Iterations, Run, asked
class Loud(Run):
    def checkpoint(self, wait=False): print("saved", flush=True)
training = Iterations()
asked(stop_at=9, kill_at=2).after_step(Loud(), training, 2)
training.end()
print("still here")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -9 and done.stdout == "saved\n" and '"killed", "step": 2' in done.stderr


def test_it_dies_only_once_the_agent_has_listed_the_checkpoint_as_kept(tmp_path, monkeypatch):
    verify = Verify.from_env(
        {"SHOAL_VERIFY": json.dumps({"stop_at": 3, "kill_at": 2, "captured": True}), "SHOAL_SPOOL": str(tmp_path)}
    )
    died, polls = [], []
    monkeypatch.setattr("shoal.sdk.verify.os.kill", lambda pid, signum: died.append((tmp_path / "kept").read_text()))

    def poll(seconds):
        polls.append(seconds)
        (tmp_path / "kept").write_text("step-000000001\n" + ("step-000000002\n" if len(polls) == 3 else ""))

    monkeypatch.setattr("shoal.sdk.verify.time.sleep", poll)
    run, training = Run(), Iterations()
    verify.after_step(run, training, 2)
    training.end()
    assert died == ["step-000000001\nstep-000000002\n"] and len(polls) == 3
