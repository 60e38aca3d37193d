"""Peers of a swarm for the tests, forked from one process that has loaded torch and hivemind once.

Told by one JSON file: what is the same for all (`settings`), and a mapping for each peer, of which `poison` is a lie (see
`lie`) about what it sends (not what it believes) from round `since` on. Says what happens in JSON lines.
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
from shoal.swarm.averaging.codec import on_grid
from shoal.swarm.optimizer import Optimizer

BATCH = 32
STEP_S = 0.05
"""Minimum duration of a step: rounds must be longer than the peers need to find each other."""


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


def lie(poison: str | float, update: Tensor, first: Tensor) -> Tensor:
    """What a liar sends in place of its update: a factor of it, or one of the lies with a name."""
    match poison:
        case "nan":
            return update * math.nan
        case "shift":
            return on_grid(update * -30 + 100)
        case "replay":
            return first
    return on_grid(update * float(poison))


def train(number: int, settings: dict[str, Any], own: dict[str, Any], rounds: int, rollbacks: int, count: int) -> None:
    torch.set_num_threads(1)
    task, rng = Task(), torch.Generator().manual_seed(100 + number)
    poison, since = own.pop("poison", None), own.pop("since", 0)
    inner = torch.optim.AdamW(task.model.parameters(), lr=5e-3)
    optimizer = Optimizer(task.model, inner=inner, batch_size=BATCH, **settings, **own)
    swarm, told = optimizer.swarm, -1
    real = swarm._averager.exchange

    first: list[Tensor] = []

    def exchange(update: Tensor, **options: Any) -> Any:
        first.append(update) if not first else None
        if poison is None or swarm.round < since:
            return real(update, **options)
        if poison == "fake":  # claims ten times the samples, of which it has trained none
            swarm.stats.samples *= 10
            about = {"samples": swarm.stats.samples}
            return real(torch.zeros_like(update), **options | {"weight": swarm.stats.samples, "about": about})
        return real(lie(poison, update, first[0]), **options)

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
            receipt = swarm.stats.receipt
            say(
                peer=own["peer"], round=told, averaged=receipt.get("averaged"), odd=receipt.get("odd"), loss=loss.item()
            )
    optimizer.leave()
    say(peer=own["peer"], final=task.loss() if poison is None else math.nan, round=swarm.round, hash=swarm._state.hash)


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
