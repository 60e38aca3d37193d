"""One peer of bench/swarm.py: trains the model of examples/swarm and says its held-out loss as it goes, in JSON lines."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "swarm"))

import torch
from model import LetterModel
from sums import Sums
from torch.utils.data import DataLoader
from train import held_out_loss

import shoal

EVERY = 40
"""Looks at the loss per training."""
COMPANY_S = 300.0
"""All peers are there by then, or one of them has failed."""


def main() -> None:
    told = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    way = "ddp" if told["way"] == "ddp" else "swarm"
    more = {"swarm": told["swarm"]} if way == "swarm" else {}
    run = shoal.init(parallel=way, seed=1, dir=told["dir"], checkpoint_every_s=None, extra=more)
    model = LetterModel(told["task"], width=told["width"])
    is_large = told["way"] == "large-batch"
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3 if is_large else 3e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(rate, steps=told["steps"]))
    loader = DataLoader(Sums(told["task"]), batch_size=told["batch"], shuffle=True, drop_last=True)
    model, optimizer, scheduler, loader = run.prepare(model, optimizer, scheduler, loader)
    swarm = run.swarm
    say(address=swarm.address if swarm else [])
    deadline = time.monotonic() + COMPANY_S
    while swarm is not None and swarm.num_peers < told["peers"]:
        if time.monotonic() > deadline:
            sys.exit(f"only {swarm.num_peers} of {told['peers']} peers came within {COMPANY_S:.0f} s")
        time.sleep(0.05)
    next_look, seen = 0.0, 0
    for tokens, targets in run.loop(loader, epochs=1000):
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.step(loss=loss)
        samples = swarm.samples if swarm else run.global_step * told["global_batch"]
        is_new = swarm is None or swarm.round != seen  # between rounds a peer's model is its own
        if is_new and (samples >= next_look or samples >= told["until"]):
            next_look += told["until"] / EVERY
            say(samples=samples, loss=held_out_loss(run.parallel.unwrap(model), told["task"]))
        seen = swarm.round if swarm else 0
        if samples >= told["until"]:
            break
    if swarm is not None:
        say(rounds=swarm.round, exchanged=swarm.stats.published()["bytes_out"])
    run.finish()


def rate(step: int, steps: int) -> float:
    """Up in the first thirtieth, and down again, to a twentieth, so that the loss has levelled off at the end."""
    return min(1.0, (step + 1) / max(1, steps // 30)) * max(0.05, 1.0 - step / (0.95 * steps))


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
