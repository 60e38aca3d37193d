"""However a node ends, the reason is told, nothing is left behind and no line is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from itertools import pairwise

import psutil
import pytest

from shoal.core.agents import BeatReply
from shoal.testing.agent_gang import Gang
from shoal.testing.patience import patient
from shoal.testing.processes import command, environment

LONG = f"1017.{os.getpid()}"
"""Seconds to sleep, by which the processes of this run are known."""
STUBBORN = """
import os, signal, sys, time
for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(s, signal.SIG_IGN)
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open(sys.argv[1], "a").write(f"{os.getpid()} ")
            os.execvpe("sleep", ["sleep", "LONG"], {})     # without a trace of us in its environment
        os._exit(0)
daemon()
os.wait()
if os.fork() == 0:
    os.setsid()
    time.sleep(1000)
print("up", os.environ["SHOAL_RANK"], flush=True)
time.sleep(1000)
""".replace("LONG", LONG)


def sleepers() -> set[int]:
    return {p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", LONG]}


@pytest.fixture
def nothing_left(gang: Callable[..., Gang]) -> Callable[[Gang], None]:
    before = sleepers()

    def check(job: Gang) -> None:
        assert job.left() == [] and sleepers() <= before

    return check


@pytest.mark.parametrize("how", ["stop", "fence", "SIGTERM to the agent"])
def test_ending_scripts_that_ignore_signals_and_daemonise_leaves_no_process(
    gang: Callable[..., Gang], sandbox: dict[str, str], nothing_left: Callable[[Gang], None], how: str
) -> None:
    job = gang(["t.py"], {"t.py": STUBBORN}, accels=2, env=sandbox, start=False)
    job.server.reply.entry.append(str(job.folder / "pids"))
    job.server.answer = BeatReply(grace_s=0.5)
    job.start()
    job.server.wait(lambda: len(job.server.log()) == 2)
    before = time.monotonic()
    if how == "stop":
        job.server.answer = BeatReply(stop=True, grace_s=0.5)
    elif how == "fence":
        job.server.answer = BeatReply(fenced=True)
    else:
        job.agents[0].terminate()
    assert job.finish(20) == [0]
    assert time.monotonic() - before < patient(8)
    last = job.server.last()
    assert last is not None and last.final and last.told and last.exit_code == -9
    assert last.reason == ("fenced" if how == "fence" else "stopped")
    nothing_left(job)


def test_kill_9_of_the_agent_takes_everything_with_it_and_a_salvage_tells_the_rest(
    gang: Callable[..., Gang], sandbox: dict[str, str], nothing_left: Callable[[Gang], None]
) -> None:
    job = gang(["t.py"], {"t.py": STUBBORN}, env=sandbox, start=False)
    job.server.reply.entry.append(str(job.folder / "pids"))
    job.start()
    job.server.wait(lambda: job.server.log())
    job.agents[0].kill()
    job.agents[0].wait()
    assert job.salvage() == 0
    last = job.server.last()
    assert last is not None and last.final and last.exit_code is None and last.reason == "agent died"
    assert job.server.log()[0] == "up 0" and "agent of this node died" in job.server.log()[-1]
    nothing_left(job)
    beats = len(job.server.beats[0])
    assert job.salvage() == 0 and len(job.server.beats[0]) == beats


def test_an_agent_that_was_never_started_is_not_said_to_have_died(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], {"t.py": ""}, start=False)
    job.launch_file(0)
    assert job.salvage() == 0
    last = job.server.last()
    assert last is not None and last.final and last.reason == "its agent was never started"
    assert job.server.log() == []


def test_a_worker_killed_by_9_is_reported_within_two_seconds_and_named(
    gang: Callable[..., Gang], sandbox: dict[str, str]
) -> None:
    script = "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(1000)\n"
    job = gang(["t.py"], {"t.py": script}, accels=2, env=sandbox)
    job.server.wait(lambda: len(job.server.log()) == 2)
    (victim,) = [
        p.pid
        for p in psutil.Process(job.agents[0].pid).children(recursive=True)
        if command(p).endswith(" t.py") and environment(p).get("RANK") == "1"
    ]
    before = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    job.server.wait(lambda: str(job.server.beats[0][-1][1].state) == "exited", 10)
    assert time.monotonic() - before < patient(2)
    job.finish()
    last = job.server.last()
    assert last is not None
    assert (last.exit_code, last.failed_rank, last.reason) == (-9, 1, "killed by SIGKILL (out of memory?)")
    assert not last.told and job.left() == []


def test_the_first_failing_worker_gives_the_reason_and_ends_the_others(gang: Callable[..., Gang]) -> None:
    script = """
import os, time
rank = int(os.environ["RANK"])
print("rank", rank, flush=True)
if rank == 1:
    raise ValueError("bad data in shard 7")
time.sleep(1000)
"""
    job = gang(["t.py"], {"t.py": script}, accels=3)
    job.finish(20)
    last = job.server.last()
    assert last is not None
    assert (last.exit_code, last.failed_rank, last.reason) == (1, 1, "ValueError: bad data in shard 7")
    assert job.left() == []


SAVES = """
import os, signal, sys, time
def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True:
    time.sleep(1)
"""


def test_a_script_that_saves_on_sigterm_has_its_grace(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], {"t.py": SAVES})
    job.server.wait(lambda: job.server.log())
    job.server.answer = BeatReply(stop=True, grace_s=10)
    job.finish(20)
    last = job.server.last()
    assert job.server.log() == ["up", "saved"]
    assert last is not None and last.told and last.exit_code == 0


def test_also_when_a_cluster_tells_every_process_of_the_job_at_once(
    gang: Callable[..., Gang], sandbox: dict[str, str]
) -> None:
    job = gang(["t.py"], {"t.py": SAVES}, env=sandbox)
    job.server.wait(lambda: job.server.log())
    agent = psutil.Process(job.agents[0].pid)
    for process in [*agent.children(recursive=True), agent]:
        process.terminate()
    job.finish(20)
    last = job.server.last()
    assert job.server.log() == ["up", "saved"]
    assert last is not None and last.exit_code == 0


COUNT = """
import time
for n in range(400):
    print(f"line {n}", flush=True)
    time.sleep(0.01)
"""


def test_a_server_that_goes_away_and_comes_back_elsewhere_gets_every_line_once(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], {"t.py": COUNT})
    job.server.wait(lambda: len(job.server.log()) > 20)
    for _ in range(2):
        job.server.stop()
        time.sleep(0.7)
        job.server.start()
        known = len(job.server.log())
        job.server.wait(lambda known=known: len(job.server.log()) > known)
    assert job.finish() == [0]
    assert job.server.log() == [f"line {n}" for n in range(400)]
    last = job.server.last()
    assert last is not None and last.final and last.exit_code == 0


def test_a_job_that_ends_while_the_server_is_down_is_told_of_later(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], {"t.py": COUNT.replace("400", "60")})
    job.server.wait(lambda: job.server.log())
    job.server.stop()
    psutil.wait_procs(psutil.Process(job.agents[0].pid).children(recursive=True), timeout=patient(20))
    assert job.agents[0].poll() is None
    job.server.start()
    assert job.finish() == [0]
    assert job.server.log() == [f"line {n}" for n in range(60)]


def test_an_agent_killed_while_the_server_is_down_loses_no_line_and_no_result(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], {"t.py": COUNT.replace("400", "60")})
    job.server.wait(lambda: job.server.log())
    job.server.stop()
    result = job.work_dir() / "result.json"
    deadline = time.monotonic() + patient(20)
    while not result.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    job.agents[0].kill()
    job.agents[0].wait()
    job.server.start()
    assert job.salvage() == 0
    assert job.server.log() == [f"line {n}" for n in range(60)]
    last = job.server.last()
    assert last is not None and last.final and last.exit_code == 0 and last.reason is None


def test_a_flood_neither_delays_beats_nor_grows_the_agent(gang: Callable[..., Gang]) -> None:
    script = """
import os, time
end, data = time.time() + 3, b"x" * 99 + b"\\n"
block, sent = data * 1000, 0
while time.time() < end:
    sent += os.write(1, block)
os.write(2, b"after the flood\\n")
time.sleep(1)
"""
    job = gang(["t.py"], {"t.py": script}, env={"SHOAL_LOG_RATE_KB_S": "256"})
    job.server.wait(lambda: job.server.log())
    agent, peak = psutil.Process(job.agents[0].pid), 0
    while job.agents[0].poll() is None:
        try:
            peak = max(peak, agent.memory_info().rss)
        except psutil.Error:
            break
        time.sleep(0.1)
    times = [at for at, _ in job.server.beats[0]]
    assert max(b - a for a, b in pairwise(times)) < patient(2.5)
    assert peak < 150 << 20
    lines = job.server.log()
    notices = [line for line in lines if "dropped: output above 256 KiB/s" in line]
    assert notices and "after the flood" in lines
    kept = sum(len(line) + 1 for line in lines if line.startswith("xx"))
    assert kept < (256 << 10) * 16
