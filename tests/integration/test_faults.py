"""Kill -9 of the server, of workers, of agents; stubborn scripts. `SHOAL_ROUNDS` sets how often (./scripts/soak: 20)."""

import itertools
import os
import random
import re
import signal
import threading
import time

import psutil
import pytest

from shoal.core.settings import Layout
from shoal.testing.engines import eventually
from shoal.testing.live import live_server, processes_of
from shoal.testing.patience import patient
from shoal.testing.processes import command, environment

ROUNDS = int(os.environ.get("SHOAL_ROUNDS", "1"))
SHORT_JOBS = 16 if ROUNDS == 1 else 50
COUNTING = """
import sys, time
total = int(sys.argv[1])
for i in range(1, total + 1):
    print(f"step {i}/{total}", flush=True)
    time.sleep(0.01)
"""
# Rank 1 of the first attempt waits to be killed; later attempts finish by themselves.
MEETING = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print(f"pid-of-rank {rank} {os.getpid()}", flush=True)
first = os.environ["SHOAL_ATTEMPT"] == "1"
for step in range(1, 100000 if first else 6):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.02)
print(f"rank {rank} done in attempt {os.environ['SHOAL_ATTEMPT']}", flush=True)
dist.destroy_process_group()
"""
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:  # a daemon: its parent is gone, it has a session of its own
        time.sleep(600)
    os._exit(0)
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
print("stubborn", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with live_server(tmp_path_factory.mktemp("faults"), slots=4, stop_grace_s=1.0) as server:
        yield server


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_training_outlives_a_killed_server_and_no_line_is_lost_or_doubled(server, code, round_):
    name, total = f"outlive-{round_}", 600
    folder = code({"train.py": COUNTING})
    server.cli("training", "run", name, "--dir", str(folder), "--nodes", "2", "--", "train.py", str(total))
    job_id = server.wait_for(name, lambda j: j.status == "running").id
    for kill in range(2):
        server.kill()
        assert kill > 0 or processes_of(job_id)  # by the second time it may have finished
        server.start()
        server.wait_for(
            name, lambda j: j.status.is_terminal or (j.progress and j.progress.step > random.randint(1, 200))
        )
    view = server.wait_for(name, lambda j: j.status.is_terminal, "finishes")
    assert (view.status, view.attempts) == ("succeeded", 1)
    for node in (0, 1):
        eventually(lambda node=node: len(server.logs(name, "--node", str(node))) >= total)
        texts = [line["text"] for line in server.logs(name, "--node", str(node)) if line["rank"] is not None]
        assert texts == [f"step {i}/{total}" for i in range(1, total + 1)]


def test_a_job_that_ends_while_the_server_is_down_is_told_when_it_is_back(server, code):
    folder = code({"train.py": COUNTING})
    server.cli("training", "run", "behind", "--dir", str(folder), "--", "train.py", "300")
    view = server.wait_for("behind", lambda j: j.status == "running")
    server.kill()
    eventually(lambda: not [p for p in processes_of(view.id) if "train.py" in command(p)])
    server.start()
    after = server.wait_for("behind", lambda j: j.status.is_terminal, "is settled")
    assert (after.status, after.exit_code, after.attempts) == ("succeeded", 0, 1)


@pytest.mark.torch
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_a_killed_worker_costs_one_attempt_and_the_events_tell_it(server, code, round_):
    name = f"worker-{round_}"
    folder = code({"train.py": MEETING})
    server.cli("training", "run", name, "--dir", str(folder), "--nodes", "2", "--accels", "2", "--", "train.py")

    def pids():
        lines = server.cli("training", "logs", name).stdout
        return dict(re.findall(r"pid-of-rank (\d) (\d+)", lines))

    eventually(lambda: len(pids()) == 4, 60)
    job_id = server.inspect(name)["id"]
    victim = next(p for p in processes_of(job_id) if environment(p).get("RANK") == "3")
    victim.send_signal(signal.SIGKILL)
    killed_at = time.time()
    view = server.wait_for(name, lambda j: j.status.is_terminal, "recovers", 120)
    assert (view.status, view.attempts) == ("succeeded", 2), view.reason
    kinds = [e.kind for e in view.events]
    assert kinds == [
        "queued", "starting", "running", "worker_failed", "fenced", "attempt_ended",
        "queued", "starting", "running", "attempt_ended", "succeeded",
    ]  # fmt: skip
    noticed = next(e.at.timestamp() for e in view.events if e.kind == "worker_failed")
    assert noticed - killed_at <= patient(2.0)
    first, second = view.attempt_list
    assert "rank 3 on node 1" in first.reason
    assert "SIGKILL" in first.reason
    assert second.result == "succeeded"
    text = server.cli("training", "logs", name).stdout
    assert len(re.findall(r"rank \d done in attempt 2", text)) == 4
    assert processes_of(job_id) == []


def test_restarts_end_when_nothing_gets_further(server, code):
    folder = code({"train.py": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"})
    server.cli(
        "training", "run", "hopeless", "--dir", str(folder), "--max-restarts", "2", "-f", "--", "train.py", check=1
    )
    view = server.inspect("hopeless")
    assert (view["status"], view["attempts"], view["exit_code"]) == ("failed", 3, 137)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_stopping_a_stubborn_script_leaves_no_process(server, code, round_):
    name = f"stubborn-{round_}"
    folder = code({"train.py": STUBBORN})
    server.cli("training", "run", name, "--dir", str(folder), "--", "train.py")
    eventually(lambda: "stubborn" in server.cli("training", "logs", name).stdout)
    view = server.inspect(name)
    assert len(processes_of(view["id"])) >= 3
    server.cli("training", "stop", name, "--wait")
    assert server.inspect(name)["status"] == "stopped"
    eventually(lambda: processes_of(view["id"]) == [], 5)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_a_killed_agent_leaves_nothing_and_its_last_lines_still_arrive(server, code, round_):
    name = f"agent-{round_}"
    folder = code(
        {
            "train.py": "import os, time\nprint('before', flush=True)\nif os.environ['SHOAL_ATTEMPT'] == '1': time.sleep(600)"
        }
    )
    server.cli("training", "run", name, "--dir", str(folder), "--", "train.py")
    view = server.wait_for(name, lambda j: j.status == "running")
    [mine] = [d for d in server.layout.nodes_dir.iterdir() if view.id in (d / "launch.json").read_text()]
    eventually(lambda: any(b"before" in f.read_bytes() for f in (mine / "spool" / "log").iterdir()))
    old = processes_of(view.id)
    psutil.Process(view.attempt_list[0].nodes[0].pid).kill()
    after = server.wait_for(name, lambda j: j.status.is_terminal, "recovers")
    assert (after.status, after.attempts) == ("succeeded", 2), after.reason
    assert "agent" in after.attempt_list[0].reason
    assert [p for p in old if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
    eventually(lambda: server.cli("training", "logs", name).stdout.count("before") == 2)


def test_two_commands_at_once_start_one_server(tmp_path, server):
    from shoal.client.local import ensure_local_server

    home, got = tmp_path / "fresh", []
    layout = Layout(home)
    threads = [
        threading.Thread(target=lambda: got.append(ensure_local_server(layout, say=lambda _: None))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with live_server(home) as fresh:
        assert len(set(got)) == 1
        assert len([p for p in fresh.processes() if "shoal.server" in command(p)]) == 1


def test_many_short_jobs_run_in_order_and_no_slot_is_used_twice(server, code):
    folder = code({"train.py": "import time; time.sleep(1)"})
    server.cli("training", "run", "short", "--dir", str(folder), "-f", "--", "train.py")
    with server.client() as client:
        spec = client.jobs.get("short").spec
        for i in range(SHORT_JOBS):
            client.jobs.create(spec.model_copy(update={"name": f"short-{i}"}))
        server.wait_for(f"short-{SHORT_JOBS - 1}", lambda j: j.status.is_terminal, "the last one ends", 240)
        views = [client.jobs.get(f"short-{i}") for i in range(SHORT_JOBS)]
    assert {v.status.value for v in views} == {"succeeded"}
    spans = []
    for view in views:
        [start] = [e for e in view.events if e.kind == "starting"]
        [end] = [e for e in view.events if e.kind == "attempt_ended"]
        spans += [(start.at, end.at, (n["machine"], s)) for n in start.data["nodes"] for s in n["slots"]]
    starts = [next(e.at for e in v.events if e.kind == "starting") for v in views]
    assert starts == sorted(starts)
    for slot in {s for *_, s in spans}:
        mine = sorted((a, b) for a, b, s in spans if s == slot)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(mine))
    assert len({s for *_, s in spans}) == 4
