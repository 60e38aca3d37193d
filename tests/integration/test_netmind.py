"""Scripts written for NetMind Power, unmodified: the two examples of its guide and a loop that resumes as its samples do."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from marks import takes_minutes

from shoal.testing.patience import patient

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "netmind"
GUIDE = ROOT / "tests" / "unit" / "compat" / "netmind_guide.txt"
ONE_THREAD = ("--env", "OMP_NUM_THREADS=1")
# A loop as in NetMind's samples: the scheduler made late and never registered, the bar given in epochs. The job called
# `killed` waits at step 17, in its first attempt, to be killed.
RESUMING = """
import os, time, torch
from NetmindMixins.Netmind import nmp, NetmindDistributedModel, NetmindOptimizer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(int(os.environ["RANK"]))
nmp.init()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1))
ddp_model = NetmindDistributedModel(torch.nn.parallel.DistributedDataParallel(model))
optimizer = NetmindOptimizer(torch.optim.AdamW(ddp_model.parameters(), lr=0.01))
numbers = torch.randn(160, 8, generator=torch.Generator().manual_seed(0))
sampler = DistributedSampler(numbers, seed=0)
loader = DataLoader(TensorDataset(numbers), batch_size=8, sampler=sampler)
nmp.init_train_bar(total_epoch=3, step_per_epoch=len(loader))
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 30)
waits = os.environ["SHOAL_JOB_NAME"] == "killed" and os.environ["SHOAL_ATTEMPT"] == "1"
print("starts at epoch", nmp.cur_epoch, "step", nmp.cur_step, flush=True)
for epoch in range(nmp.cur_epoch, 3):
    sampler.set_epoch(epoch)
    for (batch,) in loader:
        if nmp.should_skip_step():
            continue
        optimizer.zero_grad()
        loss = ddp_model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        nmp.step({"loss": loss.item(), "Learning rate": scheduler.get_last_lr()[0]})
        while waits and nmp.cur_step == 17:
            time.sleep(0.05)
nmp.finish_training()
nmp.finish_training()
"""
CUDA = 'torch.device("cuda:0" if torch.cuda.is_available() else "cpu")'
DDP = "(\n    torch.nn.parallel.DistributedDataParallel(model)\n)"


@pytest.fixture
def custom_loop(tmp_path):
    return Path(shutil.copytree(EXAMPLES / "custom_loop", tmp_path / "custom_loop"))


@pytest.fixture(scope="module")
def squad(server):
    server.cli("dataset", "push", "squad", "--file", str(EXAMPLES / "custom_loop" / "squad"))
    return "squad"


def change(script, old, new):
    text = script.read_text()
    assert old in text
    script.write_text(text.replace(old, new))


def python(*argv, cwd, **env):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")}
    return subprocess.run(
        [sys.executable, *argv], cwd=cwd, env=kept | {"OMP_NUM_THREADS": "1"} | env,
        capture_output=True, text=True, timeout=patient(120), check=False,
    )  # fmt: skip


def run(server, name, folder, dataset, *flags):
    return server.cli(
        "training", "run", name, "--dir", str(folder), "--dataset", dataset, "--accels", "2", *ONE_THREAD, *flags,
        "-f", "--", "story_custom_trainer.py",
    )  # fmt: skip


def records(folder):
    [path] = folder.rglob("rank-0.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def of_kind(found, kind):
    return [r for r in found if r["k"] == kind]


def test_the_custom_loop_runs_with_plain_python(custom_loop):
    done = python("story_custom_trainer.py", "--data", "squad", cwd=custom_loop)
    assert done.returncode == 0, done.stderr
    found = records(custom_loop)
    steps = of_kind(found, "s")
    assert [s["i"] for s in steps] == list(range(1, 81))
    assert set(steps[0]["v"]) == {"loss", "Learning rate"}
    assert steps[-1]["v"]["loss"] < steps[0]["v"]["loss"]
    evaluations = of_kind(found, "e")
    assert [e["i"] for e in evaluations] == [20, 40, 60, 80]
    assert evaluations[-1]["v"]["valid_time"].endswith(" s")
    assert (of_kind(found, "p")[-1]["done"], of_kind(found, "f")[-1]["status"]) == (True, "finished")
    [checkpoint] = custom_loop.rglob("step-000000080")
    state = torch.load(checkpoint / "model.pt", weights_only=True)
    assert set(state) == {"0.weight", "1.weight", "1.bias", "4.weight", "4.bias"}


def test_after_kill_9_the_guides_own_loop_goes_on_with_its_model_and_schedule(custom_loop):
    """It neither reads cur_epoch nor skips: its data starts over, and it is told so. Without DDP, as the guide has it too."""
    change(custom_loop / "story_custom_trainer.py", DDP, "(model)")
    env = {"SHOAL_SPOOL": str(custom_loop / "spool"), "OUTPUT_DIR": str(custom_loop / "out")}
    verify = json.dumps({"kill_at": 25, "stop_at": 1000})
    arguments = ("story_custom_trainer.py", "--data", "squad")
    killed = python(*arguments, cwd=custom_loop, **env, SHOAL_CHECKPOINT_EVERY="10", SHOAL_VERIFY=verify)
    assert killed.returncode == -9, killed.stderr
    before = records(custom_loop)
    resumed = python(*arguments, cwd=custom_loop, **env)
    assert resumed.returncode == 0, resumed.stderr
    after = records(custom_loop)[len(before) :]
    last, first = of_kind(before, "s")[-1], of_kind(after, "s")[0]
    assert (last["i"], first["i"]) == (25, 26)
    decay = last["v"]["Learning rate"] - first["v"]["Learning rate"]
    assert decay == pytest.approx(0.009 / 80)
    assert of_kind(after, "w")[0]["code"] == "nmp_not_led"
    assert "should_skip_step" in resumed.stderr
    assert of_kind(after, "s")[-1]["i"] == 105


def test_the_custom_loop_runs_on_two_workers(server, squad, custom_loop, tmp_path):
    name = "as-it-is"
    run(server, name, custom_loop, squad)
    view = server.inspect(name)
    assert (view["status"], view["progress"]["fraction"]) == ("succeeded", 1.0)
    metrics = server.json("training", "metrics", name)
    assert [step for step, _ in metrics["loss"]] == list(range(1, 41))
    assert [step for step, _ in metrics["valid_accuracy"]] == [10, 20, 30, 40]
    found = server.json("training", "checkpoints", name)
    assert [(c["name"], c["step"]) for c in found] == [("step-000000040", 40)]

    block = re.search(r"^```python download\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)[1]
    block = re.sub(r"os\.system\(.*?\)\n", "", block).replace("2356f5c2-7f25-436f-a4b2-759e9e12a01b", view["id"])
    key = json.loads(server.cli("key", "create", f"for-{name}", "--json").stdout)["key"]
    (tmp_path / "download.py").write_text(block.replace("INIYBEXPK68U1CLH", key))
    done = python("download.py", cwd=tmp_path, SHOAL_HOME=str(server.home))
    assert done.returncode == 0, done.stderr
    folder = tmp_path / re.search(r"downloaded at: (.+)", done.stdout)[1]
    assert set(torch.load(folder / "model.pt", weights_only=True)) >= {"0.weight", "4.bias"}
    (tmp_path / "download.py").write_text(block)
    failed = python("download.py", cwd=tmp_path, SHOAL_HOME=str(server.home))
    assert failed.returncode == 1
    assert "download failed" in failed.stderr


def test_a_loop_that_says_cuda_and_trains_the_bare_model_runs_without_a_gpu_and_is_told_of_its_mistake(
    server, squad, custom_loop
):
    script = custom_loop / "story_custom_trainer.py"
    change(script, CUDA, 'torch.device("cuda:0")')
    change(script, "cross_entropy(ddp_model(inputs)", "cross_entropy(model(inputs)")
    log = run(server, "cuda", custom_loop, squad, "--emulate-cuda").stdout
    assert server.inspect("cuda")["progress"]["fraction"] == 1.0
    assert "The original model was trained" in log


def test_a_script_that_skips_goes_on_after_kill_9_as_if_nothing_had_happened(server, code):
    folder = code({"train.py": RESUMING})
    for name in ("killed", "unbroken"):
        server.cli(
            "training", "run", name, "--dir", str(folder), "--accels", "2", *ONE_THREAD,
            "--env", "SHOAL_CHECKPOINT_EVERY=7", "--", "train.py",
        )  # fmt: skip
    deadline = time.monotonic() + patient(90)
    with server.client() as client:
        while not client.checkpoints.list("killed"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    job = server.inspect("killed")["id"]
    worker(job, "1").kill()
    view = server.wait_for("killed", lambda j: j.status.is_terminal, "recovers", 90)
    log = server.cli("training", "logs", "killed").stdout
    assert (view.status, view.attempts) == ("succeeded", 2), log[-3000:]
    # The save at step 14 is left out if the one before is still being written.
    assert "starts at epoch 1 step 14" in log or "starts at epoch 0 step 7" in log
    server.wait_for("unbroken", lambda j: j.status.is_terminal)
    killed, unbroken = (server.json("training", "metrics", name) for name in ("killed", "unbroken"))
    assert [step for step, _ in killed["loss"]] == list(range(1, 31))
    assert killed == unbroken


@takes_minutes
@pytest.mark.timeout(600)
def test_a_script_of_2023_runs_on_its_own_libraries_beside_one_on_the_newest(server, tmp_path):
    """The guide's second example, with transformers 4.44.2 from its requirements.txt, killed and resumed."""
    pytest.importorskip("transformers")
    folder = Path(shutil.copytree(EXAMPLES / "hf_trainer", tmp_path / "hf_trainer"))
    # So that there is somebody to kill.
    change(
        folder / "story_hf_trainer.py", "        return super().on_step_end(",
        "        import os, time\n"
        "        while os.environ.get('SHOAL_ATTEMPT') == '1' and state.global_step == 15: time.sleep(0.05)\n"
        "        return super().on_step_end(",
    )  # fmt: skip
    server.cli("dataset", "push", "stories", "--file", str(folder / "stories"))
    two = ["--accels", "2", *ONE_THREAD, "--"]
    old = ["story_hf_trainer.py", "--max_steps", "30", "--use_cpu", "true"]
    server.cli("training", "run", "of-2023", "--dir", str(folder), "--dataset", "stories", *two, *old)
    new = ["train.py", "--max_steps", "10", "--use_cpu", "true"]
    server.cli("training", "run", "of-today", "--dir", str(ROOT / "examples" / "hugging_face"), *two, *new)
    with server.client() as client:
        while not [c for c in client.checkpoints.list("of-2023") if c.step == 10]:
            view = client.jobs.get("of-2023")
            if view.status == "failed" and re.search("No matching|connection", view.reason or "", re.IGNORECASE):
                pytest.skip(f"no package index here: {view.reason}")
            assert view.status != "failed", view.reason
            time.sleep(0.2)
    worker(server.inspect("of-2023")["id"], "0").kill()
    view = server.wait_for("of-2023", lambda j: j.status.is_terminal, "recovers", 120)
    log = server.cli("training", "logs", "of-2023").stdout
    assert (view.status, view.attempts, view.progress.fraction) == ("succeeded", 2, 1.0), log[-3000:]
    metrics = server.json("training", "metrics", "of-2023")
    assert [step for step, _ in metrics["letters seen"]] == list(range(1, 31))
    assert [step for step, _ in metrics["train/loss"]] == [5, 10, 15, 20, 25, 30]
    assert [step for step, _ in metrics["perplexity"]] == [20]
    versions = {c["version"] for c in server.json("training", "checkpoints", "of-2023")}
    assert versions == {"4.44.2"}

    [interpreter] = server.home.glob("cache/envs/*/venv/bin/python")
    plain = [str(interpreter), "story_hf_trainer.py", "--data", "stories", "--max_steps", "5", "--use_cpu", "true"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")} | {"OMP_NUM_THREADS": "1"}
    subprocess.run(plain, cwd=folder, env=kept, capture_output=True, timeout=patient(120), check=True)
    assert of_kind(records(folder), "f")[-1]["status"] == "finished"
    assert (folder / "story-model" / "checkpoint-5" / "model.safetensors").is_file()

    today = server.wait_for("of-today", lambda j: j.status.is_terminal, "ends", 60)
    assert today.status == "succeeded"
    versions = {c["version"] for c in server.json("training", "checkpoints", "of-today")}
    assert not versions & {"4.44.2"}


def worker(job_id, rank):
    """The process of a rank: the one with no parent of the same rank."""
    found = []
    for process in psutil.process_iter():
        try:
            env = process.environ()
            if env.get("SHOAL_JOB_ID") == job_id and env.get("RANK") == rank:
                found.append(process)
        except psutil.Error:
            continue
    return next(p for p in found if p.ppid() not in {other.pid for other in found})
