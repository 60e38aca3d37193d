"""Peers of a swarm for the tests: a small model trained as an ordinary script would, in hosts of their own where asked.

`python swarm_worker.py` loads torch and hivemind once and forks a peer for every JSON line on its stdin: the peer's `name`,
the `host` to enter (the id of its first process, or null), the `env` and `folder` to run in, the files for what it says
(`said`) and its errors (`log`), and what it is `told`. On stdout it says the `pid` of each peer and, later, its `exit` code.

A peer is told the task, the model's depth, its learning rate and the step after which that stays low (`lr`, `last`), batch size, pace in seconds a step, the swarm's settings (none: it trains alone), how many peers to
wait for, and a file which gives, once it is there, the samples after which to evaluate and leave. It says what it does in
JSON lines.
"""

from __future__ import annotations

import ctypes
import functools
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "swarm"))

import torch
import torch._dynamo  # which the first optimizer would load, in every peer again
from model import LetterModel
from sums import Sums
from swarm_forks import make_own_locks
from torch.utils.data import DataLoader, TensorDataset
from train import held_out_loss

import shoal
import shoal.swarm.large_batch
import shoal.swarm.rounds  # and so would every peer these

LIBC = ctypes.CDLL(None, use_errno=True)


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        asked = json.loads(line)
        data(asked["told"]["task"])
        if os.fork() == 0:
            start(asked)
            return


def start(asked: dict[str, Any]) -> None:
    """Become the peer, as a child of this process: one that enters a host's pid namespace is not in it, its child is."""
    files = [os.open(asked["said"], os.O_WRONLY), os.open(asked["log"], os.O_WRONLY | os.O_CREAT)]
    if asked["host"] is not None:
        enter(asked["host"])
    os.chdir(asked["folder"])
    pid = os.fork()
    if pid:
        for file in files:
            os.close(file)
        say(name=asked["name"], pid=pid)
        _, status = os.waitpid(pid, 0)
        say(name=asked["name"], exit=os.waitstatus_to_exitcode(status))
        os._exit(0)
    for number, file in enumerate([os.open(os.devnull, os.O_RDONLY), *files]):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(asked["env"])
    tempfile.tempdir = None
    make_own_locks()
    train(asked["told"])


def enter(pid: int) -> None:
    kinds = ("net", "uts", "ipc", "pid", "mnt")
    for place in [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]:
        if LIBC.setns(place, 0):
            raise OSError(ctypes.get_errno(), f"cannot enter host {pid}")
        os.close(place)


def train(told: dict[str, Any]) -> None:
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("shoal").setLevel(logging.INFO)
    run = shoal.init(
        parallel=told["parallel"], seed=1, dir=told["dir"], checkpoint_every_s=None, extra={"swarm": told.get("swarm")}
    )
    model = LetterModel(told["task"], width=32, depth=told["depth"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=told["lr"], weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, functools.partial(rate, last=told["last"]))
    loader = DataLoader(data(told["task"]), batch_size=told["batch"], shuffle=True, drop_last=True)
    model, optimizer, scheduler, loader = run.prepare(model, optimizer, scheduler, loader)
    swarm = run.swarm
    say(joined=swarm.round if swarm else 0, address=swarm.address if swarm else [])
    while swarm is not None and swarm.num_peers < told.get("company", 1):
        time.sleep(0.05)
    seen = swarm.round if swarm else 0
    for tokens, targets in run.loop(loader, epochs=1000):
        began = time.perf_counter()
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        time.sleep(max(0.0, told.get("pace_s", 0.0) + began - time.perf_counter()))  # the machine it plays
        optimizer.step()
        scheduler.step()
        run.step(loss=loss)
        if swarm is not None and swarm.round != seen:
            seen = swarm.round
            receipt = swarm.stats.receipt
            say(round=seen, samples=swarm.samples, members=len(receipt.get("members", [])), averaged=receipt["averaged"],
                lr=optimizer.param_groups[0]["lr"], s=round(receipt.get("round_s", 0.0), 2))  # fmt: skip
        elif swarm is not None:
            continue  # between rounds a peer's model is its own
        if (swarm.samples if swarm else run.global_step * told["batch"]) >= goal(Path(told["goal"])):
            break
    samples = swarm.samples if swarm else run.global_step * told["batch"]
    state = getattr(swarm, "_state", None)  # of large batches it is hivemind's own
    say(loss=held_out_loss(model, told["task"]), samples=samples, round=seen, hash=state.hash if state else None)
    run.finish()


@functools.cache
def data(task: str) -> TensorDataset:
    """Sentences as tensors, made once for all peers; there are no more than a few hundred different ones."""
    sums = Sums(task, 2048)
    return TensorDataset(*map(torch.stack, zip(*(sums[index] for index in range(len(sums))), strict=True)))


def rate(step: int, last: int) -> float:
    """Up, and down again until the loss has levelled off."""
    return min(1.0, (step + 1) / 50) * max(0.05, 1.0 - step / last)


def goal(path: Path) -> float:
    return float(path.read_text()) if path.exists() else float("inf")


if __name__ == "__main__":
    main()
