"""A real Slurm cluster as an engine, from the command line: the same jobs, the same loss, and what Slurm does to them."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from shoal.testing import hosts, slurm
from shoal.testing.engines import eventually
from shoal.testing.live import live_server
from shoal.testing.processes import command

ROUNDS = int(os.environ.get("SHOAL_SLURM_ROUNDS", "0"))
pytestmark = pytest.mark.skipif(slurm.missing() is not None, reason=str(slurm.missing()))

DDP = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(0); torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(64, 4); goal = data.sum(1, keepdim=True)
for step in range(20):
    mine = slice(rank * 64 // world, (rank + 1) * 64 // world)
    loss = torch.nn.functional.mse_loss(model(data[mine]), goal[mine])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
total = loss.detach().clone(); dist.all_reduce(total)
print(f"rank {rank} final loss {total.item():.9e}", flush=True)
dist.destroy_process_group()
"""
HOLDS = """
import os, signal, time
print("up", os.environ["SHOAL_RANK"], os.environ["SLURM_PROCID"], os.environ["SLURM_NNODES"], "SLURM_JWT" in os.environ, flush=True)
signal.signal(signal.SIGTERM, lambda *_: (signal.signal(signal.SIGTERM, signal.SIG_IGN), print("told", flush=True), os._exit(0)))
while not os.path.exists(os.environ["UNTIL"]):
    time.sleep(0.05)
print("done", os.environ["SHOAL_ATTEMPT"], flush=True)
"""


@pytest.fixture(scope="module")
def cluster():
    with slurm.slurm_cluster(nodes=2, cpus=2) as cluster, pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.env.items():
            patch.setenv(name, value)
        yield cluster


@pytest.fixture(scope="module")
def server(cluster, tmp_path_factory):
    with live_server(tmp_path_factory.mktemp("home"), slots=2) as server:
        server.cli("engine", "add", "slurm", "--squeue-every-s", "1")
        yield server


@pytest.fixture
def hold(server, code, tmp_path):
    """Submit a job that runs on the cluster until `release` is called."""
    until = tmp_path / "until"
    folder = code({"hold.py": HOLDS})

    def submit(name, nodes=1):
        server.cli("training", "run", name, "--dir", str(folder), "--exclude", "local", "--nodes", str(nodes),
                   "--env", f"UNTIL={until}", "--", "hold.py")  # fmt: skip

    submit.release = until.touch
    yield submit
    until.touch()


def texts(server, job):
    return [line["text"] for line in server.logs(job)]


def agent_of(server, job, node=0):
    attempt = server.wait_for(job, lambda j: j.status == "running", "running").attempt_list[-1]
    return attempt, psutil.Process(attempt.nodes[node].pid)


@pytest.mark.torch
def test_the_same_job_ends_with_the_same_loss_here_and_on_slurm(server, cluster, code):
    folder = code({"train.py": DDP})
    lines = {}
    for name, where in (("here", []), ("there", ["--exclude", "local"])):
        server.cli("training", "run", name, "--dir", str(folder), "--nodes", "2", *where, "-f", "--", "train.py")
        lines[name] = sorted(line for line in texts(server, name) if "final loss" in line)
    assert len(lines["here"]) == 2
    assert lines["here"] == lines["there"]
    machines = {n["machine"] for n in server.inspect("there")["attempt_list"][0]["nodes"]}
    assert machines == {"slurm:c1", "slurm:c2"}
    eventually(lambda: not cluster.queue())


def test_machines_of_the_cluster_are_listed_and_the_engine_is_well(server):
    machines = {m["name"]: m for m in server.json("machine", "list")["machines"]}
    assert {name: m["slots_total"] for name, m in machines.items()} == {"local": 2, "slurm:c1": 1, "slurm:c2": 1}
    assert "works: 2 machines with 2 slots" in server.cli("engine", "check", "slurm").stderr
    refused = server.cli("engine", "add", "slurm", "--name", "gpu", "--partition", "gpus", check=4)
    assert "Slurm's partition 'gpus' has no node with a slot in it" in refused.stderr
    closed = server.cli("engine", "add", "slurm", "--name", "other", "--extra-args", "--array=1", check=2)
    assert "--array is set by Shoal" in closed.stderr


def test_what_slurm_makes_wait_says_why_and_is_stopped_in_its_queue(server, cluster, hold):
    hold("first", nodes=2)
    server.wait_for("first", lambda j: j.status == "running")
    # Somebody else's job comes before the next of ours, which our own count of slots knows nothing of.
    cluster.run("sbatch", "--exclusive", "--nodes=2", "--job-name=theirs", "--output=/dev/null", "--wrap=sleep 60")
    hold.release()
    server.cli("training", "wait", "first")
    eventually(lambda: "theirs" in cluster.run("squeue", "-h", "-t", "running", "-o", "%j"))
    hold("second")
    view = server.wait_for("second", lambda j: j.waiting is not None and "Slurm" in j.waiting)
    assert (view.status, view.attempts) == ("starting", 1)
    why = r"second: it waits in Slurm's queue as job \d+: (Resources|Priority)"
    eventually(lambda: re.search(why, server.cli("training", "why", "second").stdout), 60)
    assert "shoal training stop second" in server.cli("engine", "remove", "slurm", check=4).stderr
    server.cli("training", "stop", "second", "--wait")
    assert server.inspect("second")["status"] == "stopped"
    assert cluster.queue() == ["theirs"]
    cluster.run("scancel", "--name=theirs")
    eventually(lambda: not cluster.queue(), 30)


def test_jobs_outlive_the_server_and_are_adopted(server, cluster, hold):
    hold("outlives")
    server.wait_for("outlives", lambda j: j.status == "running")
    server.kill()
    assert len(cluster.queue()) == 1
    server.start()
    hold.release()
    server.wait_for("outlives", lambda j: j.status == "succeeded")
    view = server.inspect("outlives")
    assert (view["attempts"], [e["kind"] for e in view["events"]][-1]) == (1, "succeeded")
    assert {m["name"] for m in server.json("machine", "list")["machines"]} == {"local", "slurm:c1", "slurm:c2"}


def test_a_dead_agent_and_a_job_ended_by_the_site_mean_a_fresh_attempt(server, cluster, hold):
    hold("again")
    _, agent = agent_of(server, "again")
    eventually(lambda: "up 0 0 1 False" in texts(server, "again"))  # a worker that is only starting has not said it yet
    worker = agent.children(recursive=True)[-1]
    agent.send_signal(signal.SIGKILL)
    second = server.wait_for("again", lambda j: j.attempts == 2 and j.status == "running")
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert "died" in second.attempt_list[0].reason
    eventually(lambda: texts(server, "again").count("up 0 0 1 False") == 2)  # from then on it notices that it is told
    cluster.run("scancel", f"--name=shoal-{attempt_id(server, 'again')}")
    third = server.wait_for("again", lambda j: j.attempts == 3 and j.status == "running")
    assert third.attempt_list[1].nodes[0].reason == "its machine stopped it (SIGTERM)"
    assert "told" in texts(server, "again")
    hold.release()
    server.wait_for("again", lambda j: j.status == "succeeded")
    eventually(lambda: not cluster.queue() and not cluster.processes())


def attempt_id(server, job):
    [folder] = [p for p in (server.home / "engines/slurm/nodes").iterdir() if is_live(p) and named(p) == job]
    return folder.name.rpartition(".")[0]


def named(folder: Path):
    return json.loads((folder / "launch.json").read_text())["job_name"]


def is_live(folder: Path):
    return not (folder / "gone").exists() and (folder / "agent.json").exists()


def test_a_stopped_job_is_told_and_leaves_nothing_and_its_directory_goes_with_it(server, cluster, hold):
    hold("stops", nodes=2)
    _, agent = agent_of(server, "stops", 1)
    eventually(lambda: {"up 0 0 2 False", "up 1 1 2 False"} <= set(texts(server, "stops")))  # each knows its own place
    server.cli("training", "stop", "stops", "--wait")
    assert texts(server, "stops").count("told") == 2
    eventually(lambda: not cluster.queue() and not cluster.processes())
    assert not agent.is_running()
    server.cli("training", "delete", "stops", "--yes")
    assert not [
        p
        for p in (server.home / "engines/slurm/nodes").iterdir()
        if (p / "launch.json").exists() and named(p) == "stops"
    ]


@pytest.fixture
def apart(tmp_path):
    """A server, two hosts of their own, and Slurm on them, added through the first as its login node."""
    (tmp_path / "shared").mkdir()
    with (
        live_server(tmp_path / "home", slots=1) as server,
        hosts.lan("a", "b", hide=(server.layout.server_dir,)) as net,
        slurm.slurm_cluster(cpus=2, net=net) as cluster,
    ):
        (net["a"].home / ".bashrc").write_text(f"export SLURM_CONF={cluster.env['SLURM_CONF']}\n")
        server.cli("engine", "add", "slurm", "--squeue-every-s", "1", "--name", "hpc", "--login", net["a"].target, "--key", str(net.key),
                   "--home", str(tmp_path / "shared"), "--python", sys.executable)  # fmt: skip
        yield server, net, cluster


needs_hosts = pytest.mark.skipif(hosts.missing() is not None, reason=str(hosts.missing()))


@needs_hosts
@pytest.mark.torch
def test_hosts_of_their_own_are_used_through_a_login_node_and_find_the_server(apart, code):
    server, net, cluster = apart
    server.cli("training", "run", "far", "--dir", str(code({"train.py": DDP})), "--nodes", "2",
               "--exclude", "local", "-f", "--", "train.py")  # fmt: skip
    attempts = server.inspect("far")["attempt_list"]
    assert len(attempts) == 1, attempts
    assert {n["machine"] for n in attempts[0]["nodes"]} == {"hpc:a", "hpc:b"}
    assert sum("final loss" in text for text in texts(server, "far")) == 2
    eventually(lambda: not cluster.queue())
    assert not [p for p in net["b"].processes() if "shoal" in command(p)]


@needs_hosts
@pytest.mark.soak
@pytest.mark.skipif(not ROUNDS, reason="takes a minute a round: SHOAL_SLURM_ROUNDS=10")
def test_a_host_that_dies_costs_a_job_its_attempt_and_no_more(apart, code, tmp_path):
    server, net, cluster = apart
    folder, took = code({"hold.py": HOLDS}), []
    for number in range(ROUNDS):
        name, until = f"round-{number}", tmp_path / f"until-{number}"
        cluster.run("scontrol", "update", "nodename=a", "state=drain", "reason=test")
        server.cli("training", "run", name, "--dir", str(folder), "--exclude", "local", "--env", f"UNTIL={until}",
                   "--", "hold.py")  # fmt: skip
        first = server.wait_for(name, lambda j: j.status == "running")
        assert first.attempt_list[0].nodes[0].machine == "hpc:b"
        cluster.run("scontrol", "update", "nodename=a", "state=resume")
        net["b"].kill()
        began = time.monotonic()
        second = server.wait_for(name, lambda j: j.attempts == 2 and j.status == "running", timeout_s=120)
        took.append(time.monotonic() - began)
        assert second.attempt_list[1].nodes[0].machine == "hpc:a"
        until.touch()
        server.wait_for(name, lambda j: j.status == "succeeded")
        net["b"].boot()
        cluster.start_node("b")
    print("back to work after", [f"{s:.1f} s" for s in took])
    assert max(took) < 60
