"""Machines frozen, killed and back: a job of a range of nodes goes on with what there is, every sample once and in order.

Real agents and workers on two machines (two_machines.py). `SHOAL_LOSSES` sets how often one is killed (./scripts/soak: 10).
"""

import os
import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from marks import takes_minutes

from shoal.client.local import start_server
from shoal.sdk.samples.order import epoch_order
from shoal.testing.engines import eventually
from shoal.testing.live import LiveServer

LOSSES = int(os.environ.get("SHOAL_LOSSES", "1"))
LEASE_S = 3.0
SETTINGS = f"lease_s = {LEASE_S}\nstop_grace_s = 10.0\nqueue_grow_s = 1.0\nstall_s = 3.0\nwarm = false\n"
SAMPLES, BATCH, SEED = 640, 4, 3
# Rank by rank, each step's samples; it ends once it has grown again and was told that it is enough.
TRAIN = f"""
import os, pathlib, sys, time, torch, shoal

last_attempt = os.environ["SHOAL_ATTEMPT"] == "3"

torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.sin(torch.arange({SAMPLES}.0)).unsqueeze(1), torch.arange({SAMPLES}))
with shoal.init(seed={SEED}, checkpoint_every=10, checkpoint_every_s=None) as run:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(data, batch_size={BATCH} // 4, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    print("begins", run.world_size, run.global_step, flush=True)
    seen = []
    while not run.should_stop:
        for x, index in loader:
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += index.tolist()
            before = run.global_step
            run.step(loss=loss)
            if run.global_step > before:
                print("step", run.global_step, *seen, flush=True)
                seen = []
                time.sleep(0.05)
            if last_attempt and pathlib.Path(sys.argv[1]).exists():
                run.stop("enough")
            if run.should_stop:
                break
"""
COUNTING = """
import os, time
for i in range(10**6):
    print("line", i, flush=True)
    time.sleep(0.02)
    if os.environ["SHOAL_ATTEMPT"] != "1" and i >= 3:
        break
"""
STUCK = {
    "train.py": """
import torch, torch.distributed as dist
from data import Batches
dist.init_process_group("gloo")
for batch in Batches(dist.get_rank()):
    dist.all_reduce(batch)
    print("once", flush=True)
""",
    "data.py": """
import time, torch
class Batches:
    def __init__(self, rank):
        self.rank = rank
    def __iter__(self):
        yield torch.ones(1)
        if self.rank == 2:
            time.sleep(600)
        yield torch.ones(1)
""",
}


class TwoMachines(LiveServer):
    def start(self):
        program = Path(__file__).with_name("two_machines.py")
        start_server(self.layout, command=[sys.executable, str(program), "--home", str(self.home)])
        return self

    @property
    def far(self):
        return self.home / "far"

    def there(self):
        """All that runs on the other machine: agents by their directory, and whatever is below them."""
        found = {}
        for process in psutil.process_iter():
            try:
                if any(str(self.far) in word for word in process.cmdline()):
                    found |= {p.pid: p for p in [process, *process.children(recursive=True)]}
            except psutil.Error:
                continue
        return [p for p in found.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def signal_all(self, signum):
        for process in self.there():
            try:
                process.send_signal(signum)
            except psutil.NoSuchProcess:
                continue

    def flag(self, name, up):
        self.far.mkdir(exist_ok=True)
        (self.far / name).touch() if up else (self.far / name).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("two")
    server = TwoMachines(home)
    server.layout.server_dir.mkdir(parents=True)
    server.layout.settings_file.write_text(SETTINGS)
    try:
        yield server.start()
    finally:
        server.signal_all(signal.SIGCONT)
        server.close()


def lost_after(view, since):
    """Seconds from then until the server had decided."""
    return next(e.at.timestamp() for e in view.events if e.kind == "node_lost") - since


@pytest.mark.torch
@takes_minutes
def test_a_frozen_machine_is_given_up_what_thaws_commits_nothing_and_the_job_grows_again(server, code, tmp_path):
    folder, enough = code({"train.py": TRAIN}), tmp_path / "enough"
    options = ["--nodes", "1:2", "--accels", "2", "--grow", "--dir", str(folder)]
    server.cli("training", "run", "elastic", "--no-preflight", *options, "--", "train.py", str(enough))
    server.wait_for("elastic", lambda j: any(e.kind == "checkpoint" for e in j.events), "saves", 90)
    zombies = server.there()
    server.flag("cut", up=True)
    server.signal_all(signal.SIGSTOP)
    frozen_at = time.time()
    view = server.wait_for("elastic", lambda j: j.attempts == 2 and j.status == "running", "goes on", 90)
    assert lost_after(view, frozen_at) <= LEASE_S + 3
    assert [n.machine for n in view.attempt_list[1].nodes] == ["local"]
    server.wait_for("elastic", lambda j: [e.attempt for e in j.events if e.kind == "checkpoint"][-1] == 2, "saves", 60)
    thawed_at = time.time()
    server.signal_all(signal.SIGCONT)
    eventually(lambda: not [p for p in zombies if p.is_running() and p.status() != psutil.STATUS_ZOMBIE], 30)
    view = server.wait_for("elastic", lambda j: True)
    [far] = [n.index for n in view.attempt_list[0].nodes if n.machine == "far"]
    late = [e for e in view.events if e.attempt == 1 and e.at.timestamp() > thawed_at]
    assert late == [] and view.attempts == 2, "it ended itself and its workers, and nobody heard of it"
    said = server.logs("elastic", "--attempt", "1", "--node", str(far))
    assert said and not [line for line in said if line["at"] > frozen_at + LEASE_S + 3]
    server.flag("lost", up=True)  # its engine has noticed, at last
    with server.client() as client:
        eventually(lambda: {m.name: m.state for m in client.machines.capacity().machines}["far"] == "lost")
    server.flag("cut", up=False)
    server.flag("lost", up=False)
    server.wait_for("elastic", lambda j: j.attempts == 3 and j.status == "running", "grows", 90)
    enough.touch()
    view = server.wait_for("elastic", lambda j: j.status.is_terminal, "ends", 90)
    assert (view.status, [a.num_nodes for a in view.attempt_list]) == ("succeeded", [2, 1, 2]), view.reason
    assert view.attempt_list[1].reason == "saved, to continue with 2 nodes instead of 1"
    assert_every_sample_once(server)
    eventually(lambda: server.there() == [], 20)


def assert_every_sample_once(server):
    """Check the samples that the ranks printed: for each step, the last attempt that made it counts."""
    words = [(line["attempt"], line["rank"], line["text"].split()) for line in server.logs("elastic")]
    begins = sorted({(attempt, *map(int, w[1:])) for attempt, _, w in words if w[0] == "begins"})
    assert [world for _, world, _ in begins] == [4, 2, 4] and begins[1][2] >= 10 and begins[2][2] > begins[1][2]
    made: dict[int, dict[int, list[int]]] = {}
    for attempt, _, w in words:
        if w[0] == "step":
            made.setdefault(int(w[1]), {}).setdefault(attempt, []).extend(map(int, w[2:]))
    last = max(made)
    assert sorted(made) == list(range(1, last + 1)) and last > begins[2][2]
    batches = SAMPLES // BATCH
    for step, by_attempt in made.items():
        epoch, batch = divmod(step - 1, batches)
        wanted = epoch_order(SAMPLES, SEED, epoch)[batch * BATCH : (batch + 1) * BATCH]
        assert sorted(by_attempt[max(by_attempt)]) == sorted(wanted), step
    told = server.json("training", "metrics", "elastic")["loss"]
    assert [step for step, _ in told] == list(range(1, last + 1))


@pytest.mark.parametrize("round_", range(LOSSES))
def test_a_machine_that_dies_with_all_on_it_costs_one_attempt(server, code, round_):
    name = f"killed-{round_}"
    folder = code({"train.py": COUNTING})
    options = ["--nodes", "1:2", "--accels", "2", "--no-preflight", "--dir", str(folder)]
    server.cli("training", "run", name, *options, "--", "train.py")
    server.wait_for(name, lambda j: j.status == "running" and j.nodes == 2, "runs on both")
    server.flag("cut", up=True)
    server.flag("lost", up=True)
    server.signal_all(signal.SIGKILL)
    killed_at = time.time()
    view = server.wait_for(name, lambda j: j.status.is_terminal, "ends")
    assert (view.status, [a.num_nodes for a in view.attempt_list]) == ("succeeded", [2, 1]), view.reason
    assert lost_after(view, killed_at) <= LEASE_S + 3
    server.flag("cut", up=False)
    server.flag("lost", up=False)
    assert server.there() == []


@pytest.mark.torch
def test_a_collective_that_waits_for_one_rank_tells_which_and_where(server, code):
    folder = code(STUCK)
    options = ["--nodes", "2", "--accels", "2", "--no-preflight", "--dir", str(folder)]
    server.cli("training", "run", "stuck", *options, "--", "train.py")
    others, late = "ranks 0, 1 and 3 wait in all_reduce, called at train.py:6", "rank 2 is in __iter__ at data.py:9"
    server.wait_for("stuck", lambda j: {others, late} <= set(re.split(r": |; ", j.stalled or "")), "is explained", 90)
    with server.client() as client:
        eventually(
            lambda: any("[shoal] no line, metric or step for" in line.text for line in client.jobs.lines("stuck"))
        )
        found = client.jobs.stacks("stuck")
    assert found.complete and [g.ranks for g in found.groups] == [[0, 1, 3], [2]]
    why = server.cli("training", "why", "stuck").stdout
    assert f"  {others}\n  {late}\n" in why and "shoal training stacks stuck" in why
    assert others in server.cli("training", "inspect", "stuck").stdout
    shown = server.cli("training", "stacks", "stuck").stdout
    assert "ranks 0, 1, 3 wait in all_reduce, called at train.py:6" in shown
    assert "    all_reduce (torch/distributed/distributed_c10d.py:" in shown and "    __iter__ (data.py:9)" in shown
    server.cli("training", "stop", "stuck", "--wait")
    assert "only a running job" in server.cli("training", "stacks", "stuck", check=None).stderr
