"""The Hugging Face Trainer with our callback, and loops of Accelerate and Fabric with `run.step` only. Two real workers each."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import psutil
import pytest

from shoal.core.ports import free_port
from shoal.testing.engines import eventually
from shoal.testing.forks import HUGGING_FACE, LIGHTNING, Fork
from shoal.testing.patience import patient
from shoal.testing.processes import environment

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.torch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "hugging_face" / "train.py"
# The first attempt waits at step 25 to be killed.
WAITING = """
import os, time
import train

class Waiting(train.ShoalCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control = super().on_step_end(args, state, control, **kwargs)
        while os.environ["SHOAL_ATTEMPT"] == "1" and state.global_step == 25:
            time.sleep(0.05)
        return control

train.ShoalCallback = Waiting
train.main()
"""
LOOP = """
import sys, torch, shoal
torch.manual_seed(0)
torch.set_num_threads(1)
model, data = torch.nn.Linear(4, 1), torch.randn(400000, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(data, batch_size=2)
if sys.argv[1] == "accelerate":
    from accelerate import Accelerator
    library = Accelerator(cpu=True)
    model, optimizer, loader = library.prepare(model, optimizer, loader)
else:
    from lightning.fabric import Fabric
    library = Fabric(accelerator="cpu", devices=2)
    library.launch()
    model, optimizer = library.setup(model, optimizer)
    loader = library.setup_dataloaders(loader)
run = shoal.init(parallel="none", max_steps=100000)
for batch in loader:
    optimizer.zero_grad()
    loss = model(batch).pow(2).mean()
    library.backward(loss)
    optimizer.step()
    run.step(loss=loss)
    if run.global_step == 20 and run.rank == 1:
        run.stop("enough")
    if run.should_stop:
        break
weight = getattr(model, "module", model).weight.sum().item()
print(f"rank {run.rank} stopped at {run.global_step} weight {weight:.9f}", flush=True)
run.finish()
"""


def two_workers(argv, folder, modules=HUGGING_FACE, **env):
    """Started as torchrun or the agent would, with a spool and an output directory; their outputs go to files."""
    port = free_port()
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")}
    common = kept | {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "SHOAL_SPOOL": str(folder / "spool"), "OUTPUT_DIR": str(folder / "out"), "OMP_NUM_THREADS": "1",
    } | env  # fmt: skip
    (folder / "out").mkdir(parents=True)
    started = []
    for rank in ("0", "1"):
        with (folder / f"rank-{rank}.log").open("wb") as log:
            of_rank = common | {"RANK": rank, "LOCAL_RANK": rank}
            started.append(
                Fork([sys.executable, *argv], modules=modules, cwd=folder, env=of_rank, stdout=log, stderr=log)
            )
    return started


def finish(workers, folder, timeout=90):
    try:
        codes = [w.wait(patient(timeout)) for w in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert codes == [0, 0], "".join((folder / f"rank-{r}.log").read_text()[-3000:] for r in (0, 1))


def records(folder, rank=0):
    path = folder / "spool" / f"rank-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_after_kill_9_of_a_worker_the_trainer_goes_on_from_its_newest_checkpoint(server, code):
    folder = code({"waiting.py": WAITING})
    shutil.copy(EXAMPLE, folder)
    server.cli(
        "training", "run", "killed", "--dir", str(folder), "--accels", "2", "--env", "OMP_NUM_THREADS=1",
        "--", "waiting.py", "--max_steps", "40", "--use_cpu", "true", "--output_dir", "elsewhere",
    )  # fmt: skip
    with server.client() as client:
        eventually(lambda: [c for c in client.checkpoints.list("killed") if c.step == 20], 90)
    job = server.inspect("killed")
    victim = next(
        p
        for p in psutil.process_iter()
        if (env := environment(p)).get("SHOAL_JOB_ID") == job["id"] and env.get("RANK") == "1"
    )
    victim.kill()
    view = server.wait_for("killed", lambda j: j.status.is_terminal, "recovers", 90)
    log = server.cli("training", "logs", "killed").stdout
    assert (view.status, view.attempts) == ("succeeded", 2), log[-3000:]
    assert view.progress.fraction == 1.0

    metrics = server.json("training", "metrics", "killed")
    assert [step for step, _ in metrics["train/loss"]] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert [step for step, _ in metrics["eval/loss"]] == [20, 40]
    assert metrics["train/loss"][-1][1] < metrics["train/loss"][0][1]
    found = [c for c in server.json("training", "checkpoints", "killed") if c["node"] == 0]
    assert sorted({c["step"] for c in found}) == [20, 40]
    assert "linked into OUTPUT_DIR" in log


def test_a_signal_to_one_worker_saves_on_all_and_leaves_the_loop(tmp_path):
    arguments = ["--max_steps", "100000", "--use_cpu", "true", "--output_dir", str(tmp_path / "out")]
    workers = two_workers([str(EXAMPLE), *arguments, "--save_steps", "100000", "--eval_strategy", "no"], tmp_path)
    try:
        eventually(lambda: [r for r in records(tmp_path) if r["k"] == "s" and r["i"] >= 10], 90)
    finally:
        workers[1].send_signal(signal.SIGTERM)
    finish(workers, tmp_path)
    [end] = [r for r in records(tmp_path) if r["k"] == "f"]
    assert (end["status"], end["why"]) == ("stopped", "SIGTERM")
    assert 10 <= end["i"] < 100000
    assert (tmp_path / "out" / f"checkpoint-{end['i']}" / "trainer_state.json").is_file()
    for rank in (0, 1):
        assert f"done at step {end['i']}" in (tmp_path / f"rank-{rank}.log").read_text()
    assert [r["k"] for r in records(tmp_path, rank=1) if r["k"] in "sepcf"] == []


@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_a_loop_of_another_library_needs_run_step_only(library, tmp_path):
    pytest.importorskip(library)
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    modules = LIGHTNING if library == "lightning" else HUGGING_FACE
    finish(two_workers([str(script), library], tmp_path, modules), tmp_path)
    said = [(tmp_path / f"rank-{r}.log").read_text() for r in (0, 1)]
    ends = [next(line.split(" ", 2)[2] for line in text.splitlines() if "stopped at" in line) for text in said]
    assert ends[0] == ends[1]
    steps = [r["i"] for r in records(tmp_path) if r["k"] == "s"]
    assert steps == list(range(1, len(steps) + 1))
    assert 20 < len(steps) < 100000
    assert [r["status"] for r in records(tmp_path) if r["k"] == "f"] == ["stopped"]
