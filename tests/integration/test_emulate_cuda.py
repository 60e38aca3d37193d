"""Scripts that hard-code CUDA and nccl, as they are, on a machine without: real torch, real process groups."""

import json
import os
import sys

import pytest

from shoal.testing import forks
from shoal.testing.patience import patient

pytest.importorskip("torch")

SHOAL = [sys.executable, "-m", "shoal.cli"]
NOTICE = "CUDA is emulated"


@pytest.fixture
def here(tmp_path, monkeypatch):
    for name in [n for n in os.environ if n.startswith("SHOAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    return tmp_path


def run(here, script, *options, command=("train.py",)):
    (here / "train.py").write_text(script)
    done = forks.run(
        [*SHOAL, "run", "--emulate-cuda", *options, "--", *command],
        modules=forks.CLI,
        cwd=here,
        capture_output=True,
        timeout=patient(240),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


EVERYTHING = """
import importlib.util, pickle, subprocess, sys
importlib.util.find_spec("torch")  # libraries look whether it is there before they import it
import torch, torch.nn as nn

assert torch.cuda.is_available() and torch.cuda.device_count() == 1
torch.set_num_threads(1)
device = torch.device("cuda:0")
assert str(device) == "cpu" and isinstance(device, torch.device) and pickle.loads(pickle.dumps(device)) == device
assert torch.device("cuda", 1) == torch.device(type="cuda", index=1) == torch.device(0) == torch.device("cpu")
for tensor in (
    torch.zeros(2, device="cuda"), torch.randn(2, device=device), torch.tensor([1.0], device="cuda:1"),
    torch.ones(1).cuda(), torch.ones(1).to("cuda"), torch.ones(1).to(0), torch.ones(1).to(device="cuda", dtype=torch.half),
    torch.ones_like(torch.ones(1), device="cuda"), torch.ones(1).new_zeros(2, device="cuda"), torch.cuda.FloatTensor([1]),
    torch.ones(1).type("torch.cuda.DoubleTensor"), torch.ones(1).pin_memory().cuda(non_blocking=True),
):
    assert tensor.device.type == "cpu", tensor
with torch.device("cuda"):
    assert torch.ones(1).device.type == "cpu"
with torch.device("meta"):
    assert nn.Linear(2, 2).weight.device.type == "meta"

model = nn.DataParallel(nn.Linear(2, 2, device="cuda").cuda().to(device).to(0), device_ids=[0]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.cuda.amp.GradScaler()
for _ in range(2):
    optimizer.zero_grad()
    with torch.cuda.amp.autocast(dtype=torch.float16):
        loss = model(torch.ones(4, 2).cuda(non_blocking=True)).float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
assert scaler.state_dict()["_growth_tracker"] == 2

torch.cuda.synchronize(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats(); torch.cuda.manual_seed_all(1)
assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == torch.cuda.memory_reserved() == 0
free, total = torch.cuda.mem_get_info()
assert 0 < free <= total == torch.cuda.get_device_properties(0).total_memory
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
    start.record(); end.record()
assert start.elapsed_time(end) >= 0
generator = torch.Generator(device="cuda").manual_seed(3)
assert isinstance(generator, torch.Generator) and torch.rand(1, generator=generator, device="cuda").device.type == "cpu"

accelerator = torch.accelerator
assert accelerator.is_available() and accelerator.device_count() == 1 and accelerator.current_accelerator().type == "cuda"
assert accelerator.current_accelerator(check_available=True) is not None and str(accelerator.current_accelerator()) == "cuda"
found = accelerator.current_accelerator()
for tensor in (torch.ones(1, device=found), torch.ones(1).to(found), nn.Linear(1, 1, device=found).weight, torch.ones(1).to(torch.device(found))):
    assert tensor.device.type == "cpu"
with found:
    assert torch.ones(1).device.type == "cpu"
with torch.device("meta"):
    late = nn.Linear(2, 2)
late.to_empty(device=found)
accelerator.set_device_index(1)
assert torch.cuda.current_device() == accelerator.current_device_index() == 1
with accelerator.device_index(0):
    assert torch.cuda.current_device() == 0
torch.cuda.set_device(f"{found}:0")
assert accelerator.current_device_index() == 0
accelerator.synchronize(); accelerator.synchronize(found); accelerator.empty_cache(); accelerator.reset_peak_memory_stats()
assert accelerator.memory_allocated() == accelerator.max_memory_reserved() == accelerator.memory_stats()["allocated_bytes.all.peak"] == 0
assert accelerator.get_memory_info()[1] == total and torch.float32 in accelerator.get_device_capability()["supported_dtypes"]
accelerator.set_stream(accelerator.current_stream())
start, end = torch.Event(enable_timing=True), torch.Event(device="cuda", enable_timing=True)
start.record(); end.record(accelerator.current_stream()); end.synchronize()
assert start.elapsed_time(end) >= 0
with torch.Stream(device=found) as stream:
    stream.wait_event(stream.record_event())
for asked in ("cuda", "cuda:0", found, torch.device("cuda"), None):
    assert torch.get_device_module(asked) is torch.cuda, asked
assert isinstance(torch.Generator(device=found), torch.Generator)
with torch.autocast(torch.device("cuda").type, dtype=torch.float16):
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
assert torch.cuda.nccl.version() >= (2, 10) and not torch.cuda.is_current_stream_capturing()
before = torch.get_rng_state()
for options in ({}, {"devices": [0]}, {"devices": [0], "device_type": "cuda"}):
    with torch.random.fork_rng(**options):
        torch.rand(1, device=found)
    assert torch.equal(before, torch.get_rng_state()), options
torch.cuda.memory._record_memory_history(max_entries=10); torch.cuda.memory._record_memory_history(enabled=None)

torch.save({"weight": torch.ones(2)}, "saved.pt")
for where in ("cuda:0", torch.device("cuda"), {"cuda:0": "cuda:1"}, lambda storage, _: storage.cuda(0), None):
    assert torch.load("saved.pt", map_location=where)["weight"].device.type == "cpu"

@torch.jit.script
def scripted(n: int):
    return torch.zeros(n) + torch.ones(n)
assert scripted(2).tolist() == [1, 1]

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        assert torch.cuda.is_available()
        return torch.tensor(i, device="cpu")
if __name__ == "__main__":
    assert len(list(torch.utils.data.DataLoader(Numbers(), num_workers=1))) == 4
    child = [sys.executable, "-c", "import torch; print(torch.device('cuda'), torch.cuda.is_available())"]
    print(subprocess.run(child, capture_output=True, text=True, check=True))
    print("tensor is on", torch.ones(1, device="cuda").device)
"""


def test_every_way_to_ask_for_cuda_leads_to_the_cpu(here):
    done = run(here, EVERYTHING)
    assert "tensor is on cpu" in done.stdout
    assert "stdout='cpu True\\n', stderr=''" in done.stdout, "a child of the script, told nothing twice"
    assert done.stderr.count(NOTICE) == 1


DDP = """
import json, os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
assert torch.cuda.is_available(), "needs a GPU"
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device(f"cuda:{local_rank}")
dist.init_process_group(backend="nccl", device_id=device)
torch.set_num_threads(1)
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 1).to(device), device_ids=[local_rank], output_device=local_rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.full((2, 4), float(local_rank + step)).cuda(local_rank, non_blocking=True)
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
mean = torch.tensor([float(local_rank)], device=device)
dist.all_reduce(mean, op=dist.ReduceOp.AVG)
dist.barrier(device_ids=[local_rank])
weights = model.module.weight.detach().cpu().flatten().tolist()
said = json.dumps({"rank": dist.get_rank(), "mean": mean.item(), "weights": weights, "device": str(mean.device),
                   "count": torch.cuda.device_count(), "current": torch.cuda.current_device()})
print(said + chr(10), end="", flush=True)  # in one write: workers of torchrun share a pipe
dist.destroy_process_group()
"""


def check_ddp(lines, ranks=2):
    said = sorted((json.loads(line) for line in lines if '"rank"' in line), key=lambda s: s["rank"])
    assert [s["rank"] for s in said] == [s["current"] for s in said] == list(range(ranks))
    assert all(s["mean"] == 0.5 and s["device"] == "cpu" and s["count"] == ranks for s in said)
    assert said[0]["weights"] == said[1]["weights"]


def test_a_ddp_job_with_nccl_and_a_device_per_rank_trains_on_two_workers(server, code):
    folder = code({"train.py": DDP})
    server.cli(
        "training", "run", "ddp", "--dir", str(folder), "--accels", "2", "--emulate-cuda", "-f", "--", "train.py"
    )
    lines = [line["text"] for line in server.logs("ddp")]
    check_ddp(lines)
    assert sum(NOTICE in line for line in lines) == 1


def test_workers_of_torchrun_are_reached_too(here):
    done = run(here, DDP, "-n", "2", command=("torchrun", "--nproc-per-node=gpu", "train.py"))
    check_ddp([line.partition("] ")[2] for line in done.stdout.splitlines()])
    assert done.stderr.count(NOTICE) == 1


EXAMPLES = """
import os, sys, torch, torch.distributed as dist, torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def verify_min_gpu_count(min_gpus: int = 2) -> bool:
    return torch.accelerator.is_available() and torch.accelerator.device_count() >= min_gpus

if not verify_min_gpu_count():
    print("Unable to locate sufficient gpus to run this example. Exiting.")
    sys.exit()
torch.set_num_threads(1)
rank = int(os.environ["LOCAL_RANK"])
acc = torch.accelerator.current_accelerator()
device = torch.device(f"{acc}:{rank}")
torch.accelerator.set_device_index(rank)
dist.init_process_group(backend=dist.get_default_backend_for_device(acc), device_id=device)

def block():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

def train(model, x):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, foreach=True)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = (model(x) - 1).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses[-1] < losses[0]

torch.manual_seed(0)
with torch.device("meta"):
    sharded = block()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
fully_shard(sharded[0], mp_policy=policy)
fully_shard(sharded, mp_policy=policy)
sharded.to_empty(device=device)
for layer in (sharded[0], sharded[2]):
    layer.reset_parameters()
mesh = init_device_mesh(acc.type, (dist.get_world_size(),))
split = parallelize_module(block().to(acc.type), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
wrapped = nn.parallel.DistributedDataParallel(block().to(device), device_ids=[rank])
x = torch.rand(4, 8, device=device)
for name, model in (("fsdp2", sharded), ("tensor parallel", split), ("ddp", wrapped)):
    assert train(model, x), name
    print(f"{name} trained on {torch.accelerator.current_device_index()}" + chr(10), end="", flush=True)
dist.destroy_process_group()
"""


def test_pytorchs_own_examples_find_their_accelerators_and_train(here):
    done = run(here, EXAMPLES, "-n", "2", command=("torchrun", "--nproc-per-node=auto", "train.py"))
    said = sorted(line.partition("] ")[2] for line in done.stdout.splitlines())
    assert said == [f"{name} trained on {n}" for name in ("ddp", "fsdp2", "tensor parallel") for n in (0, 1)], (
        done.stdout
    )


IDLE = """
import sys, torch
if torch.{module}.device_count() < 2:
    print("Unable to locate sufficient 2 gpus to run this example. Exiting.")
    sys.exit()
torch.ones(1).to("cuda")
"""
NOTHING = "found one device and ended without using any, so it has done nothing"


@pytest.mark.parametrize("module", ["cuda", "accelerator"])
def test_a_script_that_ends_well_having_done_nothing_is_warned_of(here, module):
    done = run(here, IDLE.format(module=module))
    assert "Unable to locate" in done.stdout
    assert NOTHING in done.stderr and "--nproc N" in done.stderr


def test_a_script_that_works_with_what_it_found_is_not_warned_of(here):
    assert "warning" not in run(here, IDLE.format(module="cuda"), "-n", "2").stderr
    trains = "import torch\nprint(torch.cuda.device_count())\ntorch.ones(1, requires_grad=True).sum().backward()\n"
    assert "warning" not in run(here, trains).stderr


TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
assert torch.cuda.is_available()
torch.set_num_threads(1)
config = GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8, bos_token_id=1, eos_token_id=1)
model = GPT2LMHeadModel(config).to("cuda")
data = [{"input_ids": [i % 16] * 8, "labels": [i % 16] * 8} for i in range(8)]
options = {"num_train_epochs": 1, "per_device_train_batch_size": 2, "save_strategy": "no", "report_to": [], "disable_tqdm": True}
args = TrainingArguments("out", fp16=True, **options)
trainer = Trainer(model=model, args=args, train_dataset=data)
trainer.train()
logits = model(torch.ones(1, 4, dtype=torch.long).to("cuda:0")).logits
print("trained", trainer.state.global_step, "steps as one of", args.world_size, "on", logits.device, args.n_gpu, flush=True)
"""


def test_hugging_faces_trainer_shares_the_work_of_two_workers_on_the_cpu(here):
    pytest.importorskip("transformers")
    done = run(here, TRAINER, "-n", "2")
    said = [line.partition("] ")[2] for line in done.stdout.splitlines()]
    assert said.count("trained 2 steps as one of 2 on cpu 0") == 2, done.stdout
