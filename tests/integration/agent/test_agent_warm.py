"""Workers that start in a preloaded interpreter: the same to the job, and as little left behind, whoever is killed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.agent.sandbox.mounts import Mode, choose
from shoal.core.agents import BeatReply
from shoal.engines.local.prefork import PreforkParent, WarmAgent
from shoal.testing.agent_gang import Gang
from shoal.testing.engines import eventually
from shoal.testing.processes import command

PLACE = """
import os, resource, sys
print(open(sys.argv[1]).read(), sys.argv, sorted(os.listdir(os.environ["DATA_LOCATION"])))
kept = ("Uid", "Gid", "Groups", "NoNew", "Cap", "Sec", "Threads", "SigBlk", "SigIgn", "SigCgt", "Umask", "Cpus_allowed:")
print(*(line.strip() for line in open("/proc/self/status") if line.startswith(kept)), sep="; ")
print([resource.getrlimit(getattr(resource, n)) for n in sorted(vars(resource)) if n.startswith("RLIMIT_")])
print(open("/proc/self/oom_score_adj").read(), os.getpriority(os.PRIO_PROCESS, 0), os.getsid(0) == os.getpid())
print([line.split(" - ")[0].split()[3:6] for line in open("/proc/self/mountinfo")])
print(sorted(n for n in os.listdir("/proc") if n.isdigit())[:1], os.getpid() < 100, os.getppid() > 0)
print([os.readlink(f"/proc/self/ns/{n}") for n in ("net", "ipc", "uts", "cgroup")])
print(*(f"{k}={v}" for k, v in sorted(os.environ.items()) if k not in ("MASTER_PORT", "SHOAL_URL", "MLFLOW_TRACKING_URI")), sep="\\n")
open(os.environ["OUTPUT_DIR"] + "/x", "w").write("kept")
sys.exit("on purpose")
"""
MEMORY = r"""
import re
found = set()
for line in open("/proc/self/maps"):
    low, high, mode = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
    if mode.startswith("rw"):
        with open("/proc/self/mem", "rb") as memory:
            memory.seek(int(low, 16))
            # The pattern is no text that it would find itself.
            found |= set(re.findall(rb"toke[n]-0|canary-of-the-serve[r]|for-the-jo[b]", memory.read(int(high, 16) - int(low, 16))))
print(sorted(found), flush=True)
"""
RANKS = """
import os, sys, torch, torch.distributed as dist
open_files = [os.readlink(f"/proc/self/fd/{n}") for n in range(3, 20) if os.path.exists(f"/proc/self/fd/{n}")]
print(*map(os.path.basename, open_files), flush=True)
dist.init_process_group("gloo")
total = torch.full((), 1.0 + dist.get_rank())
dist.all_reduce(total)
print(os.environ["LOCAL_RANK"], "of", dist.get_world_size(), total.item(), os.getsid(0) == os.getpid(), flush=True)
dist.barrier()
dist.destroy_process_group()
if os.environ["RANK"] == "1":
    sys.exit(5)
"""
LONG = f"2345.{os.getpid()}"
"""Seconds to sleep, by which the processes of this run are known."""
STUBBORN = """
import os, signal, sys, time
for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(s, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvpe("sleep", ["sleep", "LONG"], {})     # without a trace of us in its environment
    os._exit(0)
os.wait()
if os.fork() == 0:
    os.setsid()
    time.sleep(1000)
print("up", flush=True)
time.sleep(1000)
""".replace("LONG", LONG)


class WarmGang(Gang):
    prefork: PreforkParent

    def start_node(self, node: int) -> Any:
        found: list[WarmAgent] = []
        path = self.launch_file(node)

        def ask() -> bool:
            agent = self.prefork.agent(path, 1)
            found.extend([agent] if agent else [])
            return agent is not None

        eventually(ask, 60)
        return found[0]


@pytest.fixture(scope="module", params=["bubblewrap", "rewrite"])
def mode(request: pytest.FixtureRequest, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Sandboxed as for people who are not root, where that can be had: in a user namespace and without capabilities."""
    bwrap = shutil.which("bwrap")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "bubblewrap" and bwrap:
            unprivileged = tmp_path_factory.mktemp("bin") / "bwrap"
            unprivileged.write_text(f'#!/bin/sh\nexec {bwrap} --unshare-user --cap-drop ALL "$@"\n')
            unprivileged.chmod(0o755)
            patch.setenv("PATH", f"{unprivileged.parent}:{os.environ['PATH']}")
            if choose(cache, "auto") is Mode.REWRITE:
                patch.undo()
        if request.param == "bubblewrap" and choose(cache, "auto") is Mode.REWRITE:
            pytest.skip("bubblewrap does not work here")
        yield request.param


@pytest.fixture(scope="module")
def prefork(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreforkParent]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVERS_OWN", "canary-of-the-server")
        prefork = PreforkParent(sys.executable, {"SHOAL_SANDBOX": mode}, tmp_path_factory.mktemp("prefork") / "log")
        yield prefork
        prefork.close()


@pytest.fixture
def warm(tmp_path: Path, cache: Path, prefork: PreforkParent) -> Iterator[Callable[..., WarmGang]]:
    """`warm(script)` is a job whose agent comes from the prefork parent."""
    made: list[WarmGang] = []

    def make(script: str, *args: str, **reply: Any) -> WarmGang:
        files = {"t.py": script, "unused.py": "import torch"}
        job = WarmGang(tmp_path / f"w{len(made)}", cache, ["t.py", *args], files, {}, **reply)
        job.prefork = prefork
        made.append(job)
        return job

    yield make
    for job in made:
        job.close()


def sleepers() -> list[int]:
    return [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", LONG]]


def with_data(job: Gang) -> Gang:
    job.server.reply.mounts = [job.server.mount("/input/text", {"a.txt": "alpha"})]
    return job.start()


def seed_of(job: Gang) -> psutil.Process:
    """The parent of its worker."""
    scripts = [p for p in map(psutil.Process, job.left()) if "t.py" in command(p).split()]
    [parent] = [p.parent() for p in scripts if p.parent() not in scripts]
    return parent


def test_a_warm_worker_finds_itself_where_a_cold_one_does(
    warm: Callable[..., WarmGang], gang: Callable[..., Gang], mode: str
) -> None:
    data = "/input/text/a.txt"
    secret = {"KEY": "for-the-job"}
    cold = with_data(gang(["t.py", data], {"t.py": PLACE}, env={"SHOAL_SANDBOX": mode}, start=False, secrets=secret))
    hot = with_data(warm(PLACE, data, secrets=secret))
    for job, paths in ((cold, mode), (hot, f"{mode}, warm")):
        job.finish()
        last = job.server.last()
        assert last is not None and last.paths == paths, job.server.log()
        assert last.exit_code == 1 and last.reason == "exit code 1: on purpose", job.server.log()
    theirs, ours = (
        [line.replace(str(job.folder), "FOLDER").replace(job.attempt_id, "ATTEMPT") for line in job.server.log()]
        for job in (cold, hot)
    )
    assert ours == theirs and len(ours) > 8
    assert all((job.work_dir() / "output-checkpoint/x").read_text() == "kept" for job in (cold, hot))
    assert hot.server.log(stream="sys") == cold.server.log(stream="sys") == []


def test_several_warm_workers_train_together_and_each_has_its_own_output_and_end(
    warm: Callable[..., WarmGang], gang: Callable[..., Gang], mode: str
) -> None:
    cold = gang(["t.py"], {"t.py": RANKS}, env={"SHOAL_SANDBOX": mode}, accels=2)
    hot = warm(RANKS, accels=2).start()
    for job, paths in ((cold, mode), (hot, f"{mode}, warm")):
        job.finish()
        last = job.server.last()
        assert last is not None and last.paths == paths, job.server.log()
        assert last.exit_code == 5 and "exit code 5" in str(last.reason), job.server.log()
        for rank in (0, 1):
            files, said = job.server.log(rank=rank)
            assert said == f"{rank} of 2 3.0 True"
            assert files == f"stacks-{rank}.txt", "a worker has its own files only"


@pytest.mark.parametrize("mode", ["bubblewrap"], indirect=True)
def test_nothing_the_agent_or_the_server_knows_is_in_the_memory_of_a_worker(warm: Callable[..., WarmGang]) -> None:
    job = warm(MEMORY, secrets={"KEY": "for-the-job"}).start()
    job.finish()
    assert job.server.log() == ["[b'***']"]  # that is what the job's own secret looks like in a log


@pytest.mark.parametrize("mode", ["rewrite"], indirect=True)
def test_a_warm_worker_refuses_a_promised_device_where_a_cold_one_does(warm: Callable[..., WarmGang]) -> None:
    trains, other, allowed = (
        warm("print('before', flush=True)\nimport torch\nprint('trained')"),
        warm("print('no tensors here')"),
        warm("import torch\nprint('trained')", allow_cpu=True),
    )
    for job in (trains, other, allowed):
        job.slot_kind = "cuda"
        job.start().finish()
    ended = trains.server.last()
    assert ended is not None and ended.exit_code == 1 and "is a CPU build" in str(ended.reason), trains.server.log()
    assert trains.server.log(stream="out") == ["before"]
    assert other.server.log() == ["no tensors here"] and allowed.server.log() == ["trained"]


@pytest.mark.parametrize("how", ["stop", "fence", "kill -9 of the agent", "kill -9 of its seed"])
def test_a_stubborn_warm_worker_leaves_no_process(warm: Callable[..., WarmGang], how: str) -> None:
    job = warm(STUBBORN)
    job.server.answer = BeatReply(grace_s=0.5)
    job.start()
    job.server.wait(lambda: job.server.log() == ["up"] and len(sleepers()) == 1)
    if how == "stop":
        job.server.answer = BeatReply(stop=True, grace_s=0.5)
    elif how == "fence":
        job.server.answer = BeatReply(fenced=True)
    elif how == "kill -9 of the agent":
        job.agents[0].kill()
    else:
        seed_of(job).kill()
    job.finish()
    job.server.wait(lambda: not sleepers() and not job.left(), 10)
    if how == "kill -9 of the agent":
        assert job.salvage() == 0
    last = job.server.last()
    reason = {"stop": "stopped", "fence": "fenced", "kill -9 of the agent": "agent died"}
    assert last is not None and last.final and last.reason == reason.get(how, last.reason)
    assert "died" in last.reason or last.exit_code == -9


def test_kill_9_of_the_prefork_parent_disturbs_nobody_and_the_next_agent_is_not_had_from_it(
    warm: Callable[..., WarmGang], prefork: PreforkParent
) -> None:
    job = warm("import time\nfor i in range(50):\n    print(i, flush=True)\n    time.sleep(0.02)\n").start()
    job.server.wait(lambda: job.server.log())
    assert prefork.pid is not None
    os.kill(prefork.pid, signal.SIGKILL)
    assert prefork.agent(job.launch_file(0), 1) is None
    job.finish()
    last = job.server.last()
    assert last is not None and last.exit_code == 0 and job.server.log() == [str(i) for i in range(50)]
