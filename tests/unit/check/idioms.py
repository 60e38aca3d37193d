"""Ways of writing a distributed job that are right, and easy to mistake for a fault."""

SAMPLER_OR_NOT = """
import argparse, os
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main(args):
    distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    if distributed:
        dist.init_process_group(args.backend)
    model = torch.nn.Linear(1, 1)
    if distributed:
        model = torch.nn.parallel.DistributedDataParallel(model)
    bare = model.module if distributed else model
    data = torch.utils.data.TensorDataset(torch.ones(8, 1))
    sampler = DistributedSampler(data) if distributed else None
    loader = DataLoader(data, batch_size=2, shuffle=sampler is None, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), args.lr)
    for epoch in range(args.epochs):
        if distributed:
            sampler.set_epoch(epoch)
        for i, (x,) in enumerate(loader):
            loss = model(x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if not distributed or dist.get_rank() == 0:
            torch.save(bare.state_dict(), os.path.join(args.output_dir, f"{epoch}.pt"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--output-dir", default=os.environ.get("OUTPUT_DIR", "."))
    main(parser.parse_args())
"""

FIRST_IN_FIRST_OUT = """
import os
import torch

local_rank = int(os.environ.get("LOCAL_RANK", -1))


def load(args):
    if args.local_rank not in [-1, 0]:
        torch.distributed.barrier()
    features = compute(args)
    if args.local_rank in [-1, 0]:
        torch.save(features, args.cached)
    if args.local_rank == 0:
        torch.distributed.barrier()
    return features
"""

ACCELERATED = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, random_split

accelerator = Accelerator()
torch.manual_seed(1)
points = torch.utils.data.TensorDataset(torch.ones(8, 1))
train, valid = random_split(points, [6, 2])
loader = DataLoader(train, shuffle=True, batch_size=2)
valid_loader = DataLoader(valid)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader, valid_loader = accelerator.prepare(model, optimizer, loader, valid_loader)
for epoch in range(2):
    for (x,) in loader:
        loss = model(x).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    found = []
    for (x,) in valid_loader:
        with torch.no_grad():
            found.append(accelerator.gather_for_metrics(model(x)))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        print(epoch, len(found))
"""

TWO_NETWORKS = """
import os
import torch
import shoal

run = shoal.init(parallel="none", seed=0)
device = run.device
made, judge = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
of_made, of_judge = (torch.optim.Adam(m.parameters()) for m in (made, judge))
for step in range(10):
    of_judge.zero_grad()
    judged = judge(made(torch.randn(4, 2)).detach()).mean()
    judged.backward()
    of_judge.step()
    of_made.zero_grad()
    fooled = -judge(made(torch.randn(4, 2))).mean()
    fooled.backward()
    of_made.step()
    run.step(judged=judged, fooled=fooled)
torch.save(made.state_dict(), run.output_dir / "made.pt")
run.finish()
"""

IN_A_CLASS = """
import torch
import torch.distributed as dist
import shoal


class Teacher:
    def __init__(self):
        self.run = shoal.init()
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(torch.ones(8, 1))
        self.loader = torch.utils.data.DataLoader(data, shuffle=True)
        self.model, self.optimizer, self.loader = self.run.prepare(self.model, self.optimizer, self.loader)

    def epoch(self):
        for (x,) in self.loader:
            loss = self.model(x).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.run.step(loss=loss)
        if self.run.is_main:
            self.run.log_table("t", ["a"], [[1]])

    def close(self):
        self.run.finish()


teacher = Teacher()
teacher.epoch()
teacher.close()
"""

ELSEWHERE = """
import shoal
from helpers import fit

run = shoal.init()
fit(run)
"""
HELPERS = """
import torch


def fit(run):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 1)), shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for (x,) in run.loop(loader, epochs=2):
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss)
    run.finish()
"""
ONE_NAME_FOR_BOTH = """
import torch
from torch.nn.parallel import DistributedDataParallel

net = torch.nn.Linear(1, 1)
torch.distributed.init_process_group("gloo")
wrapped = DistributedDataParallel(net)


def train(net, batches, optimizer):
    for x in batches:
        loss = net(x).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


start(train, wrapped)
"""
IDIOMS = {
    "one name for the bare model and the wrapped": {"train.py": ONE_NAME_FOR_BOTH},
    "a sampler only with several workers": {"train.py": SAMPLER_OR_NOT},
    "the first worker goes first": {"train.py": FIRST_IN_FIRST_OUT},
    "accelerated": {"train.py": ACCELERATED},
    "two networks": {"train.py": TWO_NETWORKS},
    "all in a class": {"train.py": IN_A_CLASS},
    "the loop is elsewhere": {"train.py": ELSEWHERE, "helpers.py": HELPERS},
}
