"""Supervisor between Ray and an agent: nothing of the agent remains, whichever of them dies. No Ray is needed."""

import os
import signal
import sys
import threading

import psutil
import pytest

from shoal.engines.ray.actor import MachineActor
from shoal.testing.engines import eventually

# As bad as a job can be: deaf to SIGTERM, with a grandchild that left for a session of its own.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: time.sleep(60)
    os._exit(0)
open(sys.argv[1], "w").write(str(os.getpid()))
if sys.argv[2:] == ["leaves"]: os._exit(7)
while True: time.sleep(60)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "stubborn.py"
    path.write_text(STUBBORN)
    return path


@pytest.fixture
def run(script, tmp_path):
    """Have it started under a guard, and wait until it runs; gives its process."""
    hand = MachineActor()

    def start(*more):
        argv = [sys.executable, str(script), str(tmp_path / "runs"), *more]
        hand.start("a", str(tmp_path / "work"), argv, '{"token": "t"}', {"OF_THE_AGENT": "1"})
        eventually(lambda: (tmp_path / "runs").exists() and (tmp_path / "runs").read_text().isdigit())
        return int((tmp_path / "runs").read_text())

    start.hand = hand
    yield start
    for process in running(script):
        process.kill()


def running(script):
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if str(script) in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def ended(hand):
    """Once it is told, nothing may be left."""
    eventually(lambda: hand.news(-1)["ended"] == ["a"])
    return not hand.news(-1)["live"]


def test_stopping_returns_when_nothing_is_left(run, script):
    run()
    # The guard, the agent and the grandchild.
    eventually(lambda: len(running(script)) == 3)
    assert run.hand.news(-1)["live"] == ["a"]
    run.hand.stop(["a", "of somebody else"])
    assert not running(script)
    assert ended(run.hand)


def test_an_agent_that_ends_takes_its_offspring_along(run, script):
    run("leaves")
    assert ended(run.hand)
    assert not running(script)


def test_a_killed_agent_takes_its_offspring_along(run, script):
    os.kill(run(), signal.SIGKILL)
    assert ended(run.hand)
    assert not running(script)


def test_a_killed_guard_takes_the_agent_along(run, script):
    agent = psutil.Process(run())
    agent.parent().kill()
    agent.wait(5)
    assert ended(run.hand)


def test_what_runs_is_not_started_again(run, script):
    first = run()
    assert run() == first
    eventually(lambda: len(running(script)) == 3)
    run.hand.stop(["a"])


def test_when_the_process_that_started_the_guard_is_killed_all_of_it_ends(script, tmp_path):
    pid = os.fork()
    if pid == 0:
        argv = [sys.executable, str(script), str(tmp_path / "runs")]
        MachineActor().start("a", str(tmp_path / "work"), argv, None, {})
        threading.Event().wait()
    eventually((tmp_path / "runs").exists)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    eventually(lambda: not running(script), 5)


def test_news_come_at_once(run, script):
    run()
    heard, known = [], run.hand.news(-1)["version"]
    listener = threading.Thread(target=lambda: heard.append(run.hand.news(known)))
    listener.start()
    run.hand.stop(["a"])
    listener.join(10)
    assert heard[0]["ended"] == ["a"]


def test_the_launch_file_is_for_the_owner_only_and_the_agent_gets_no_setting_of_rays(run, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/x")
    monkeypatch.setenv("SHOAL_API_KEY", "secret")
    env = psutil.Process(run()).environ()
    assert (tmp_path / "work" / "launch.json").stat().st_mode & 0o077 == 0
    assert env["OF_THE_AGENT"] == "1"
    assert not any(name.startswith("RAY_") or name == "SHOAL_API_KEY" for name in env)
    run.hand.stop(["a"])
