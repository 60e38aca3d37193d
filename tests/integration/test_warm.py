"""Many small jobs with a prefork parent on a real server: they start warm, and whoever is killed, each runs once and says all it has to say.

`SHOAL_ROUNDS` sets how many rounds of kills there are (./scripts/soak: 20).
"""

import os
import random

import psutil
import pytest

from shoal.core.jobs import JobSpec
from shoal.store.pack import pack_tree
from shoal.testing.engines import eventually
from shoal.testing.live import live_server
from shoal.testing.patience import patient
from shoal.testing.processes import command, lives

ROUNDS = int(os.environ.get("SHOAL_ROUNDS", "1"))
JOBS = 6
TRIAL = """
import sys, time, torch
total = torch.zeros(())
for i in range(30):
    total += i
    print("step", i, flush=True)
    time.sleep(0.005)
print("total", total.item(), "of", sys.argv[1], flush=True)
"""
WAITS = """
import os, time, torch
print("attempt", os.environ["SHOAL_ATTEMPT"], flush=True)
if os.environ["SHOAL_ATTEMPT"] == "1":
    time.sleep(600)
"""
THREADS = "import os; os.environ['OMP_NUM_THREADS'] = '1'; import torch; print(torch.get_num_threads())"
SAID = [f"step {i}" for i in range(30)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with live_server(tmp_path_factory.mktemp("warm"), slots=2, prefork=False) as server:
        yield server


@pytest.fixture(scope="module")
def source(server, tmp_path_factory):
    return send(server, tmp_path_factory.mktemp("code"), {"trial.py": TRIAL, "waits.py": WAITS})


def send(server, folder, files):
    for name, text in files.items():
        (folder / name).write_text(text)
    with server.client() as client:
        return client.sources.send(pack_tree(folder))[0].id


def submit(server, source, name, script="trial.py", **more):
    with server.client() as client:
        client.jobs.create(JobSpec(name=name, entry=[script, name], source_id=source, **more))


def said(server, name):
    with server.client() as client:
        return [line.text for line in client.jobs.lines(name)]


def ended(server, name):
    return server.wait_for(name, lambda view: view.status.is_terminal, "its end")


def prefork_parents(server):
    """The prefork parents; a child just forked from one shows the same command line until it has its own."""
    found = [p for p in server.processes() if "shoal.agent.prefork.parent" in command(p)]
    pids = {p.pid for p in found}
    return [p for p in found if lives(p) and p.ppid() not in pids]


def until_warm(server, source, prefix):
    """Submits jobs one by one until one starts warm."""
    for i in range(50):
        submit(server, source, f"{prefix}-{i}")
        view = ended(server, f"{prefix}-{i}")
        assert view.status == "succeeded", view
        if "warm" in (view.attempt_list[0].nodes[0].paths or ""):
            return view
    raise AssertionError("no job ever started warm")


def test_jobs_that_follow_each_other_start_warm_and_others_as_ever(server, source, tmp_path):
    view = until_warm(server, source, "first")
    assert said(server, view.name) == [*SAID, f"total 435.0 of {view.name}"]
    assert len(prefork_parents(server)) == 1
    submit(server, send(server, tmp_path, {"threads.py": THREADS}), "threads", "threads.py")
    submit(server, source, "early", env={"PYTHONHASHSEED": "1"})
    for name in ("threads", "early"):
        view = ended(server, name)
        assert view.status == "succeeded" and "warm" not in view.attempt_list[0].nodes[0].paths, view


def test_a_killed_warm_agent_is_a_lost_node_and_the_next_attempt_runs(server, source):
    until_warm(server, source, "before")
    submit(server, source, "orphan", "waits.py")
    eventually(lambda: said(server, "orphan") == ["attempt 1"], 60)
    view = server.wait_for("orphan", lambda view: view.attempt_list[0].nodes[0].paths, "a running node")
    assert "warm" in view.attempt_list[0].nodes[0].paths
    [worker] = [p for p in psutil.process_iter(["cmdline"]) if "waits.py orphan" in " ".join(p.info["cmdline"] or [])]
    psutil.Process(view.attempt_list[0].nodes[0].pid).kill()
    view = ended(server, "orphan")
    assert view.status == "succeeded" and view.attempts == 2, view
    assert [text for text in said(server, "orphan") if text.startswith("attempt")] == ["attempt 1", "attempt 2"]
    assert not worker.is_running()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_kill_9_of_prefork_parent_agent_and_server_loses_and_repeats_nothing(server, source, round_):
    rng = random.Random(round_)
    until_warm(server, source, f"round-{round_}")
    names = [f"kills-{round_}-{i}" for i in range(JOBS)]
    for name in names:
        submit(server, source, name)
    # At a moment that is never the same: when some job of the round has said so many lines.
    watched, lines = rng.choice(names[:-1]), rng.randrange(1, 30)
    eventually(lambda: len(said(server, watched)) >= lines, 60)
    [prefork] = prefork_parents(server)
    if rng.random() < 0.5:
        prefork.kill()
    server.kill()
    gone, left = psutil.wait_procs([prefork], timeout=patient(10))
    assert gone and not left
    server.start()
    for name in names:
        view = ended(server, name)
        # The server may be killed between the record of an attempt and the start of its agent, with the launch file or without:
        # that attempt never ran.
        ran = [a for a in view.attempt_list if {n.reason for n in a.nodes} != {"its agent was never started"}]
        assert view.status == "succeeded" and len(ran) == 1, view
        whole = [*SAID, f"total 435.0 of {name}"]
        eventually(lambda name=name, whole=whole: len(said(server, name)) >= len(whole), 60)
        assert said(server, name) == whole
    eventually(lambda: not [p for p in server.processes() if "trial.py" in command(p)])
