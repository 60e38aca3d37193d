"""Eight peers train one model, one or two of them lie: the real reducing, outer step, watch and orders, without the network."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.testing.extras import needs

pytestmark = needs("hivemind")
PEERS, ROUNDS, STEPS, BATCH = 8, 8, 4, 32
POISON = {"nan": math.nan, "x1000": 1000.0, "flip": -1.0, "flip x1000": -1000.0}


@pytest.fixture(autouse=True, scope="module")
def _imports() -> None:
    global \
        BannedException, \
        CompressionInfo, \
        NoCompression, \
        Place, \
        Helm, \
        Monitor, \
        Outer, \
        Progress, \
        Combine, \
        GuardedReducer, \
        BadTensor
    from hivemind.averaging.partition import BannedException
    from hivemind.compression import CompressionInfo, NoCompression

    from shoal.swarm.agreement import Place
    from shoal.swarm.helm import Helm
    from shoal.swarm.monitor import Monitor
    from shoal.swarm.outer import Outer
    from shoal.swarm.records import Progress
    from shoal.swarm.reducer import Combine, GuardedReducer
    from shoal.swarm.wire import BadTensor


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Swarm:
    """`liars` tell lies from round `since` on."""

    def __init__(self, aggregation: str, liars: int, poison: str, *, since: int = 0, helm: bool = False):
        torch.manual_seed(0)
        self.teacher = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4))
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.outer = Outer(self.model, lr=0.7, momentum=0.5, feeds_back=False)
        self.aggregation, self.liars, self.factor, self.since = aggregation, liars, POISON.get(poison, 1.0), since
        self.inner = self.new_inner()
        self.place, self.now, self.monitor = Place(0, 0), 0.0, Monitor()
        self.helm = Helm(members={}, banned=[], clock=lambda: self.now) if helm else None
        self.banned: list[str] = []
        self.shelf: dict[int, dict[str, Tensor]] = {0: self.outer.tensors()}
        self.rng = torch.Generator().manual_seed(1)
        self.events: list[dict[str, Any]] = []

    def new_inner(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(self.model.parameters(), lr=2e-2, fused=True) for _ in range(PEERS)]

    def run(self) -> float:
        for _ in range(3 * ROUNDS):
            if self.place.round == ROUNDS:
                break
            self.round()
        assert self.place.round == ROUNDS
        return self.loss(4096)

    def round(self) -> None:
        self.now += 10.0
        peers = [n for n in range(PEERS) if f"peer_{n}" not in self.banned]
        learnt = [self.learn(n) for n in peers]
        average, odd = asyncio.run(self.reduce([update for update, _ in learnt]))
        self.outer.apply(average)
        self.place = Place(self.place.rollbacks, self.place.round + 1)
        self.shelf[self.place.round] = self.outer.tensors()
        if self.helm is not None:
            names = [f"Qm{peers[n]}" for n in odd]
            self.judge({f"peer_{n}": self.tell(n, loss, names) for n, (_, loss) in zip(peers, learnt, strict=True)})

    def learn(self, peer: int) -> tuple[Tensor, float]:
        self.outer.write()
        losses = []
        for _ in range(STEPS):
            self.inner[peer].zero_grad()
            loss = functional.cross_entropy(self.model((found := self.batch(BATCH))[0]), found[1])
            loss.backward()
            self.inner[peer].step()
            losses.append(loss.item())
        lies = peer >= PEERS - self.liars and self.place.round >= self.since
        return self.outer.update() * (self.factor if lies else 1.0), sum(losses)

    async def reduce(self, updates: list[Tensor]) -> tuple[Tensor, list[int]]:
        """In chunks, as peers do; and who stood out in most of them."""
        chunks = [update.split(200) for update in updates]
        shapes = [chunk.shape for chunk in chunks[0]]
        reducer = GuardedReducer(
            shapes,
            len(updates),
            Combine(self.aggregation),
            lambda _, average: NoCompression().compress(average, CompressionInfo.from_tensor(average)),
        )

        async def send(sender: int) -> list[Tensor]:
            got = []
            for number, chunk in enumerate(chunks[sender]):
                try:
                    got.append((await reducer.accumulate_part(sender, number, chunk))[1])
                except (BadTensor, BannedException):
                    reducer.on_sender_failed(sender)
                    return []
            return got

        got = await asyncio.gather(*map(send, range(len(updates))))
        return torch.cat(got[0]), [n for n, count in reducer.odd.items() if 2 * count > len(shapes)]

    def tell(self, peer: int, loss: float, odd: list[str]) -> Progress:
        return Progress(
            peer=f"peer_{peer}",
            p2p=f"Qm{peer}",
            round=self.place.round,
            rollbacks=self.place.rollbacks,
            loss=loss,
            mini_steps=STEPS,
            samples=STEPS * BATCH,
            state_hash=f"{self.place.round}",
            odd=[name for name in odd if name != f"Qm{peer}"],
        )

    def judge(self, records: dict[str, Progress]) -> None:
        assert self.helm is not None
        self.helm.see(records)
        (settled,) = self.monitor.settle(records, self.now)
        self.events += self.helm.judge(settled, records)
        if self.helm.is_new:
            order = self.helm.take_order()
            self.banned, self.aggregation = order.banned, order.aggregation or self.aggregation
            if order.rollback is not None and order.rollback.number > self.place.rollbacks:
                self.place = Place(order.rollback.number, order.rollback.to_round)
                self.outer.load(self.shelf[self.place.round])
                self.inner = self.new_inner()

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(size, 16, generator=self.rng)
        with torch.no_grad():
            return inputs, self.teacher(inputs).argmax(dim=1)

    def loss(self, size: int) -> float:
        self.outer.write()
        self.rng = torch.Generator().manual_seed(99)
        with torch.no_grad():
            return functional.cross_entropy(self.model((found := self.batch(size))[0]), found[1]).item()


@cache
def honest() -> float:
    """Of a run in which nobody lies, and nobody is suspected."""
    swarm = Swarm("mean", 0, "none", helm=True)
    found = swarm.run()
    assert swarm.events == [] and swarm.banned == []
    return found


@pytest.mark.parametrize("poison", ["nan", "x1000", "flip"])
@pytest.mark.parametrize("liars", [1, 2])
def test_with_robust_aggregation_liars_cost_less_than_five_percent(liars: int, poison: str) -> None:
    assert Swarm("robust", liars, poison).run() < 1.05 * honest()


def test_without_it_two_liars_ruin_the_run() -> None:
    assert not Swarm("mean", 2, "flip x1000").run() < 10 * honest()


@pytest.mark.parametrize(("liars", "poison"), [(1, "flip x1000"), (2, "x1000")])
def test_without_it_the_rollback_saves_the_run(liars: int, poison: str) -> None:
    swarm = Swarm("mean", liars, poison, since=3, helm=True)
    assert swarm.run() < 1.05 * honest()
    assert [event["to_round"] for event in swarm.events if event["event"] == "rollback"] == [3]
    assert swarm.banned == [f"peer_{n}" for n in range(PEERS - liars, PEERS)]
