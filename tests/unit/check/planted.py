"""One good job in several dialects, and the faults that are planted in it, one at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SDK = '''
"""A good job: the SDK, prepared things, seeded splits, output where it is kept."""
import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import shoal


def evaluate(model, loader):
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += nn.functional.mse_loss(model(x), y).item()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--kind", choices=["small", "large"], default="small")
    args = parser.parse_args()
    run = shoal.init(max_steps=100)
    data = torch.load("/input/points/points.pt")
    points = TensorDataset(data, data.sum(1, keepdim=True))
    train_set, valid_set = random_split(points, [0.9, 0.1], generator=torch.Generator().manual_seed(0))
    loader = DataLoader(train_set, batch_size=16, shuffle=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for epoch in run.epochs(args.epochs):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
        run.evaluate(valid=evaluate(model, DataLoader(valid_set, batch_size=16)))
    torch.save(model.state_dict(), os.path.join(os.environ.get("OUTPUT_DIR", "."), "model.pt"))
    run.finish()


if __name__ == "__main__":
    main()
'''

DDP = """
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
wrapped = DDP(net)
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
points = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
sampler = DistributedSampler(points)
loader = DataLoader(points, batch_size=8, sampler=sampler)


def evaluate(model):
    with torch.no_grad():
        for x, y in DataLoader(points, batch_size=8):
            model(x)


for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(wrapped(x), y)
        loss.backward()
        optimizer.step()
    evaluate(net)
    dist.barrier()
if rank == 0:
    torch.save(net.state_dict(), f"{os.environ['OUTPUT_DIR']}/model.pt")
dist.destroy_process_group()
"""

NETMIND = """
import torch
from NetmindMixins.Netmind import NetmindDistributedModel, NetmindOptimizer, nmp

nmp.init(use_ddp=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ddp_model = NetmindDistributedModel(torch.nn.parallel.DistributedDataParallel(model))
optimizer = NetmindOptimizer(optimizer)
nmp.init_train_bar(max_steps=100)
for step in range(100):
    loss = ddp_model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    nmp.step({"loss": loss.item()})
nmp.finish_training()
"""

PLAIN = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

TWO = {"nodes": 2, "datasets": frozenset({"points", "more"})}


@dataclass(frozen=True)
class Plant:
    """`old` of the good job becomes `new`; then `rule` is found, at the line with `at`, and nothing else."""

    rule: str
    good: str
    old: str
    new: str
    at: str
    asked: dict[str, Any] = field(default_factory=lambda: TWO)
    severity: str = "error"


PLANTS = {
    "the run is told no steps": Plant(
        "sdk-no-step", SDK, "            run.step(loss=loss)\n", "", "shoal.init(", severity="warning"
    ),
    "nothing is prepared": Plant(
        "sdk-no-prepare",
        SDK,
        "    model, optimizer, loader = run.prepare(model, optimizer, loader)\n",
        "",
        "shoal.init(",
    ),
    "the run is not finished": Plant("sdk-no-finish", SDK, "    run.finish()\n", "", "shoal.init(", severity="warning"),
    "nmp is not begun": Plant("netmind-no-init", NETMIND, "nmp.init(use_ddp=True)\n", "", "nmp.init_train_bar"),
    "nmp has no bar": Plant(
        "netmind-no-bar", NETMIND, "nmp.init_train_bar(max_steps=100)\n", "", "nmp.init(", severity="warning"
    ),
    "nmp is told no steps": Plant(
        "netmind-no-step", NETMIND, '    nmp.step({"loss": loss.item()})\n', "", "nmp.init(", severity="warning"
    ),
    "nmp is not finished": Plant(
        "netmind-no-finish", NETMIND, "nmp.finish_training()\n", "", "nmp.init(", severity="warning"
    ),
    "the bare model is trained": Plant("bare-model", DDP, "mse_loss(wrapped(x), y)", "mse_loss(net(x), y)", "net(x)"),
    "the bare model is trained beside nmp": Plant(
        "bare-model", NETMIND, "loss = ddp_model(", "loss = model(", "model("
    ),
    "prepare's model is not used": Plant(
        "bare-model",
        SDK,
        "    model, optimizer, loader = run.prepare(model, optimizer, loader)\n",
        "    prepared, optimizer, loader = run.prepare(model, optimizer, loader)\n",
        "mse_loss(model(x), y)\n",
    ),
    "no sampler": Plant(
        "no-sampler",
        DDP,
        "batch_size=8, sampler=sampler)",
        "batch_size=8, shuffle=True)",
        "loader =",
        severity="warning",
    ),
    "the sampler is told no epoch": Plant(
        "sampler-epoch", DDP, "    sampler.set_epoch(epoch)\n", "", "sampler = ", severity="hint"
    ),
    "an unseeded split": Plant(
        "unseeded-split",
        SDK,
        ", generator=torch.Generator().manual_seed(0))",
        ")",
        "random_split(points",
        severity="warning",
    ),
    "nothing joins the workers": Plant("not-distributed", PLAIN, "", "", "loss.backward()", severity="warning"),
    "a barrier for the first worker alone": Plant(
        "rank0-collective",
        DDP,
        "    evaluate(net)\n    dist.barrier()\n",
        "    if rank == 0:\n        print(epoch)\n        dist.barrier()\n",
        "dist.barrier()",
    ),
    "only the first worker evaluates": Plant(
        "rank0-evaluation",
        DDP,
        "    evaluate(net)\n",
        "    if rank == 0:\n        evaluate(net)\n",
        "    if rank == 0:",
        severity="warning",
    ),
    "one device for all": Plant(
        "fixed-device",
        DDP,
        "torch.nn.Linear(4, 1)\n",
        'torch.nn.Linear(4, 1).to("cuda:0")\n',
        '"cuda:0"',
        {"accels": 2},
        "warning",
    ),
    "a device that is not there": Plant(
        "fixed-device", DDP, "torch.nn.Linear(4, 1)\n", "torch.nn.Linear(4, 1).cuda(3)\n", ".cuda(3)"
    ),
    "a path on a personal machine": Plant(
        "local-path",
        SDK,
        '"/input/points/points.pt"',
        '"/Users/ada/data/points.pt"',
        "/Users/ada",
        severity="warning",
    ),
    "a checkpoint that is lost": Plant(
        "outside-output",
        SDK,
        'os.path.join(os.environ.get("OUTPUT_DIR", "."), "model.pt")',
        'os.path.join("checkpoints", f"model-{args.lr}.pt")',
        "torch.save",
        severity="warning",
    ),
    "a dataset nobody gives": Plant("missing-dataset", SDK, "/input/points/", "/input/pionts/", "/input/pionts"),
    "a dataset nobody gives on the command line": Plant(
        "missing-dataset", NETMIND, "", "", "", TWO | {"args": ("--data=/input/pionts",)}
    ),
    "a file that does not travel": Plant(
        "missing-file", SDK, '"/input/points/points.pt"', '"points.pt"', 'torch.load("points.pt")'
    ),
    "a token in the code": Plant(
        "secret",
        SDK,
        "    run = shoal.init(",
        '    os.environ["HF_TOKEN"] = "hf_' + "aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3x" + '"\n    run = shoal.init(',
        "HF_TOKEN",
        severity="warning",
    ),
    "a key by its name": Plant(
        "secret",
        SDK,
        "    run = shoal.init(",
        '    api_key = "' + "9f8e7d6c5b4a39281706f5e4d3c2b1a0" + '"\n    run = shoal.init(',
        "api_key",
        severity="warning",
    ),
    "an argument the script does not take": Plant(
        "unknown-argument", SDK, "", "", "ArgumentParser()", TWO | {"args": ("--learning-rate", "3")}
    ),
    "a number that is none": Plant(
        "unknown-argument", SDK, "", "", '"--epochs"', TWO | {"args": ("--epochs", "three")}
    ),
    "a choice that is none": Plant("unknown-argument", SDK, "", "", '"--kind"', TWO | {"args": ("--kind=huge",)}),
    "a question to nobody": Plant(
        "asks-for-input", SDK, "    run = shoal.init(", '    input("go on?")\n    run = shoal.init(', "input("
    ),
    "a figure nobody sees": Plant(
        "opens-window",
        SDK,
        "    run.finish()\n",
        "    import matplotlib.pyplot as plt\n    plt.show()\n    run.finish()\n",
        "plt.show",
        severity="hint",
    ),
    "workers spawned from the top": Plant(
        "unguarded-spawn",
        DDP,
        "sampler=sampler)",
        'sampler=sampler, num_workers=2, multiprocessing_context="spawn")',
        "loader =",
    ),
    "half a line": Plant("syntax", PLAIN, "loss.backward()", "loss.backward(", "loss.backward("),
}
