"""The SDK in real processes: plain python and torchrun, ended in every way a process can end."""

import functools
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from shoal.core.ports import free_port
from shoal.testing.forks import Fork
from shoal.testing.patience import patient

pytestmark = [pytest.mark.integration, pytest.mark.torch]

TRAIN = """
import shoal.testing.light_torch
import sys, time
import torch, shoal

torch.set_num_threads(1)
run = shoal.init("tiny", seed=1, dir=sys.argv[1], checkpoint_every_s=float(sys.argv[3]))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(512, 4), torch.randn(512, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, num_workers=1, persistent_workers=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for x, y in run.loop(loader, max_steps=int(sys.argv[2])):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.step(loss=loss, lr=0.01)
    print("at", run.rank, run.global_step, flush=True)
    time.sleep(0.005)
print("left", run.rank, run.global_step, run.should_stop, flush=True)
"""

ENDS = {
    "falls off the end": ("", 0, "finished"),
    "exits with 0": ("sys.exit(0)", 0, "finished"),
    "exits with 3": ("sys.exit(3)", 3, "failed"),
    "calls exit": ("exit(1)", 1, "failed"),
    "calls quit with a message": ("quit('no data')", 1, "failed"),
    "calls exit with nothing": ("exit()", 0, "finished"),
    "catches its exit": ("try: sys.exit(3)\nexcept SystemExit: pass", 0, "finished"),
    "exits in a thread": (
        "import threading; t = threading.Thread(target=sys.exit, args=[3]); t.start(); t.join()",
        0,
        "finished",
    ),
    "raises SystemExit before its target": ("run.aim(2)\nraise SystemExit(1)", 1, "stopped"),
    "raises SystemExit at its target": ("run.aim(1)\nraise SystemExit(0)", 0, "finished"),
    "raises": ("raise RuntimeError('boom')", 1, "failed"),
    "is killed by a signal it asked for": (
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)\nwhile True: run.step(loss=1.0)",
        143,
        "stopped",
    ),
}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.fixture
def start():
    """Start a process of its own group, `forked` from one with torch; none outlives the test."""
    started = []

    def start(*argv, forked=False, variables=(), **options):
        variables = dict(variables)
        env = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")}
        kind = Fork if forked else functools.partial(subprocess.Popen, text=True)
        process = kind(
            [sys.executable, *map(str, argv)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**env, "OMP_NUM_THREADS": "1", **variables},
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def records(folder, rank=0):
    lines = (folder / "spool" / f"rank-{rank}.jsonl").read_bytes().splitlines()
    return [json.loads(line) for line in lines]


def by_hand(start, *argv):
    """Two ranks under no launcher."""
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        start(*argv, forked=True, variables=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)
    ]


def torchrun(script, folder, steps, every_s):
    return ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", script, folder, steps, every_s]


def read_until(process, text):
    assert any(line.startswith(text) for line in process.stdout), f"{text!r} never came"


def test_the_exit_of_a_script_decides_how_its_run_ended(tmp_path, start):
    for name, (body, code, status) in ENDS.items():
        (tmp_path / "end.py").write_text(
            f"import sys, shoal\nrun = shoal.init(dir='r {name}')\nrun.step(loss=1.0)\n{body}"
        )
        process = start(tmp_path / "end.py", cwd=tmp_path)
        error = process.communicate(timeout=patient(60))[1]
        assert process.returncode == code, (name, error)
        assert records(tmp_path / f"r {name}")[-1]["status"] == status, name


def test_logging_needs_no_torch(tmp_path, start):
    (tmp_path / "no_torch.py").write_text(
        "import sys, shoal\n"
        "with shoal.init() as run:\n"
        "    for _ in run.loop(range(3)):\n        run.step(loss=1.0)\n"
        "    run.log_table('t', ['a'], [[1]])\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'httpx', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    process = start(tmp_path / "no_torch.py", cwd=tmp_path)
    assert process.wait(patient(60)) == 0, process.stderr.read()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["no_torch.py", "shoal-runs"]


def test_a_plain_run_saves_at_its_end(tmp_path, script, start):
    process = start(script, tmp_path / "r", 20, 600, forked=True)
    assert process.wait(patient(60)) == 0, process.stderr.read()
    assert [(r["i"], r["name"]) for r in records(tmp_path / "r") if r["k"] == "c"] == [(20, "step-000000020")]
    assert len([r for r in records(tmp_path / "r") if r["k"] == "s"]) == 20


def test_sigterm_to_a_whole_group_saves_and_stops_all_ranks_at_one_step(tmp_path, script, start):
    """Like torchrun: loader workers get the signal too, and must continue until the save."""
    folder = tmp_path / "r"
    process = start(*torchrun(script, folder, 100_000, 600), forked=True)
    read_until(process, "at 0 20")
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    out, error = process.communicate(timeout=patient(60))
    assert time.monotonic() - asked < patient(20)
    left = {line.split()[1]: line.split()[2:] for line in out.splitlines() if line.startswith("left")}
    assert left["0"] == left["1"], error
    step = int(left["0"][0])
    assert left["0"][1] == "True"
    assert [r["i"] for r in records(folder) if r["k"] == "c"] == [step]
    end = records(folder)[-1]
    assert (end["k"], end["i"], end["status"], end["why"]) == ("f", step, "stopped", "SIGTERM")
    assert json.loads((folder / "checkpoints" / f"step-{step:09d}" / "shoal.json").read_text())["step"] == step


def test_ranks_save_together_by_the_clock_of_rank_0(tmp_path, script, start):
    folder = tmp_path / "r"
    ranks = by_hand(start, script, folder, 400, 1)
    errors = [process.communicate(timeout=patient(120))[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], errors
    saved = [r["i"] for r in records(folder) if r["k"] == "c"]
    assert len(saved) >= 2 and saved[-1] == 400, (saved, errors)


def test_a_rank_told_to_stop_after_its_peer_died_still_ends(tmp_path, script, start):
    """Start the two ranks without a launcher, because a launcher would clean up."""
    first, second = by_hand(start, script, tmp_path / "r", 100_000, 600)
    read_until(first, "at 0 10")
    second.kill()
    first.terminate()
    assert first.wait(timeout=patient(30)) != 0
