"""Jobs run although bubblewrap works only in part, or no longer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from shoal.agent.sandbox.mounts import Mode, choose
from shoal.core.agents import BeatReply
from shoal.testing.agent_gang import Gang

READ = "import sys\nprint(open(sys.argv[1]).read())\n"


def sleepers() -> list[int]:
    return [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "1234.5"]]


def with_data(job: Gang) -> Gang:
    job.server.reply.mounts = [job.server.mount("/input/text", {"a.txt": "alpha"})]
    return job.start()


def test_without_a_pid_namespace_paths_are_mounted_and_kill_9_of_the_agent_still_ends_all(
    gang: Callable[..., Gang], cache: Path
) -> None:
    if choose(cache, "auto") is Mode.REWRITE:
        pytest.skip("bubblewrap does not work here")
    script = """
import os, sys, time
print(open("/input/text/a.txt").read(), flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execvpe("sleep", ["sleep", sys.argv[1]], {})
time.sleep(1000)
"""
    job = gang(["t.py", "1234.5"], {"t.py": script}, start=False)
    job.cache = job.folder / "cache"
    job.cache.mkdir()
    known = json.loads((cache / "sandbox.json").read_text())
    (job.cache / "sandbox.json").write_text(json.dumps({**known, "mode": Mode.BWRAP.value}))
    with_data(job)
    job.server.wait(lambda: job.server.log())
    assert job.server.log() == ["alpha"]
    job.server.wait(sleepers)
    job.agents[0].kill()
    job.server.wait(lambda: not sleepers() and not job.left(), 10)


def test_a_sandbox_that_fails_when_it_is_needed_is_replaced_by_rewriting(
    gang: Callable[..., Gang], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin/bwrap"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexit 0\n")  # what a probe likes to see, but nothing runs
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    job = gang(["t.py", "/input/text/a.txt"], {"t.py": READ}, start=False)
    job.cache = job.folder / "cache"
    with_data(job).finish()
    last = job.server.last()
    assert last is not None and last.paths == "rewrite" and last.exit_code == 0
    assert job.server.log(rank=0) == ["alpha"] and "no sandbox" in job.server.log(stream="sys")[0]
    assert not (job.cache / "sandbox.json").exists()


def test_a_sandbox_that_is_demanded_and_missing_fails_the_job(gang: Callable[..., Gang], tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("python", "sh"):
        (bare / name).symlink_to(shutil.which(name) or "")
    job = gang(["t.py"], {"t.py": "print(1)"}, env={"SHOAL_SANDBOX": "bubblewrap", "PATH": str(bare)})
    job.finish()
    last = job.server.last()
    assert (
        last is not None
        and last.exit_code == 1
        and last.reason == "cannot start: SHOAL_SANDBOX=bubblewrap, but bwrap is not installed"
    )


def test_an_agent_that_starts_before_the_server_waits_for_it(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], {"t.py": "print('late')"}, start=False)
    path = job.launch_file(0)
    job.server.stop()
    job.agents = [job._agent(str(path))]
    log = job.work_dir() / "agent.log"
    job.server.wait(lambda: log.exists() and "join:" in log.read_text())
    job.server.start()
    assert job.finish() == [0] and job.server.log() == ["late"]


def test_an_attempt_given_up_before_its_agent_came_is_told_that_nothing_runs(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], {"t.py": "print('never')"}, start=False)
    job.server.fenced = True
    job.start().finish()
    last = job.server.last()
    assert last is not None and last.final and last.told and last.exit_code is None
    assert job.server.log() == [] and job.salvage() == 0 and len(job.server.beats[0]) == 1


def test_a_stop_reaches_all_nodes_of_a_gang(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], {"t.py": "import time; print('up', flush=True); time.sleep(1000)"}, num_nodes=2, accels=2)
    job.server.wait(lambda: len(job.server.log(0)) == len(job.server.log(1)) == 2)
    job.server.answer = BeatReply(stop=True, grace_s=5)
    assert job.finish(20) == [0, 0]
    assert all((last := job.server.last(n)) is not None and last.told and last.exit_code == -15 for n in (0, 1))
    assert job.left() == []
