"""A peer for the tests: the model of examples/swarm, told by one JSON argument, saying what happens in JSON lines.

`pace_s`: a step takes at least that long. `company`: peers to wait for at first. `goal`: a file that holds, once it is there,
the samples after which to evaluate and leave.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "swarm"))

import torch
from model import LetterModel
from sums import Sums
from torch.utils.data import DataLoader
from train import held_out_loss

import shoal


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    told = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("shoal").setLevel(logging.INFO)
    run = shoal.init(
        parallel=told["parallel"], seed=1, dir=told["dir"], checkpoint_every_s=None, extra={"swarm": told.get("swarm")}
    )
    model = LetterModel(told["task"], width=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    loader = DataLoader(Sums(told["task"]), batch_size=told["batch"], shuffle=True, drop_last=True)
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
            receipt = swarm.tally.receipt
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


def rate(step: int) -> float:
    """Up, and down again until the loss has levelled off."""
    return min(1.0, (step + 1) / 50) * max(0.05, 1.0 - step / 450)


def goal(path: Path) -> float:
    return float(path.read_text()) if path.exists() else float("inf")


if __name__ == "__main__":
    main()
