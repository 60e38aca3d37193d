"""Peers of a swarm for the tests, forked from one process that has loaded torch and hivemind once.

Told by one JSON file: what is the same for all (`settings`), and a mapping for each peer, of which `poison` is a factor
on what it sends (not on what it believes) from round `since` on. Says what happens in JSON lines.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which the first optimizer would load, in every peer again
from torch import Tensor, nn
from torch.nn import functional

import shoal.swarm.rounds  # noqa: F401  and so would every peer this
from shoal.swarm.optimizer import Optimizer

BATCH = 32
STEP_S = 0.02
"""What a step takes at least: rounds must be longer than it takes to hear of each other."""


class Task:
    """Labels are drawn from a teacher's odds, so there is a loss nobody gets below."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.teacher = nn.Linear(16, 4, bias=False)
        self.model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4))

    def batch(self, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(size, 16, generator=rng)
        with torch.no_grad():
            odds = functional.softmax(3 * self.teacher(inputs), dim=1)
        return inputs, torch.multinomial(odds, 1, generator=rng).squeeze(1)

    def loss(self) -> float:
        inputs, labels = self.batch(8192, torch.Generator().manual_seed(99))
        with torch.no_grad():
            return functional.cross_entropy(self.model(inputs), labels).item()


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def alone(samples: int) -> None:
    """The loss of an honest process that trains by itself."""
    torch.set_num_threads(1)
    task, rng = Task(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=5e-3)
    for _ in range(samples // BATCH):
        inputs, labels = task.batch(BATCH, rng)
        optimizer.zero_grad()
        functional.cross_entropy(task.model(inputs), labels).backward()
        optimizer.step()
    say(alone=task.loss())


def train(number: int, settings: dict[str, Any], own: dict[str, Any], rounds: int, rollbacks: int, count: int) -> None:
    torch.set_num_threads(1)
    task, rng = Task(), torch.Generator().manual_seed(100 + number)
    poison, since = float(own.pop("poison", 1.0)), own.pop("since", 0)
    inner = torch.optim.AdamW(task.model.parameters(), lr=5e-3)
    optimizer = Optimizer(task.model, inner=inner, batch_size=BATCH, **settings, **own)
    swarm, told = optimizer.swarm, -1
    real = swarm._averager.exchange

    def exchange(update: Tensor, **options: Any) -> Any:
        return real(update * (poison if swarm.round >= since else 1.0), **options)

    swarm._averager.exchange = exchange
    say(peer=own["peer"], joined=swarm.round, p2p=swarm._links.p2p)
    while (
        swarm.num_peers < count
    ):  # rounds of this size are over before a machine that is busy has started the next peer
        time.sleep(0.1)
    while swarm.round < rounds or swarm._place.rollbacks < rollbacks:
        inputs, labels = task.batch(BATCH, rng)
        optimizer.zero_grad()
        loss = functional.cross_entropy(task.model(inputs), labels)
        loss.backward()
        optimizer.step(loss=loss.item())
        time.sleep(STEP_S)
        if swarm.round != told:
            told = swarm.round
            receipt = swarm.tally.receipt
            say(
                peer=own["peer"], round=told, averaged=receipt.get("averaged"), odd=receipt.get("odd"), loss=loss.item()
            )
    optimizer.leave()
    say(peer=own["peer"], final=task.loss() if poison == 1.0 else math.nan, round=swarm.round, hash=swarm._state.hash)


def main() -> None:
    told = json.loads(Path(sys.argv[1]).read_bytes())
    fork = multiprocessing.get_context("fork")
    count = len(told["settings"]["members"])
    peers = [fork.Process(target=alone, args=(told["alone"],))]
    for number, own in enumerate(told["peers"]):
        peers.append(
            fork.Process(target=train, args=(number, told["settings"], own, told["rounds"], told["rollbacks"], count))
        )
    for peer in peers:
        peer.start()
    for peer in peers:
        peer.join()
    sys.exit(max(peer.exitcode or 0 for peer in peers))


if __name__ == "__main__":
    main()
