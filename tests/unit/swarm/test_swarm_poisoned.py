"""Eight peers train one model, one or two of them lie: the real reducing, outer step, watch and orders, without the network."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterator, Sequence
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
"""Factors on an update; other lies have a method."""


@pytest.fixture(autouse=True, scope="module")
def _imports() -> None:
    global \
        BannedException, \
        CompressionInfo, \
        NoCompression, \
        Place, \
        SwarmControl, \
        Monitor, \
        Outer, \
        Progress, \
        Combine, \
        GuardedReducer, \
        BadTensor, \
        SeenUpdates, \
        digests
    from hivemind.averaging.partition import BannedException
    from hivemind.compression import CompressionInfo, NoCompression

    from shoal.swarm.agreement import Place
    from shoal.swarm.averaging.digests import SeenUpdates, digests
    from shoal.swarm.averaging.reducer import Combine, GuardedReducer
    from shoal.swarm.averaging.wire import BadTensor
    from shoal.swarm.control import SwarmControl
    from shoal.swarm.monitor import Monitor
    from shoal.swarm.outer import Outer
    from shoal.swarm.records import Progress


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Swarm:
    """`liars` tell lies from round `since` on."""

    def __init__(
        self,
        aggregation: str,
        liars: int,
        poison: str,
        *,
        since: int = 0,
        control: bool = False,
        absent: Sequence[str] = (),
    ):
        torch.manual_seed(0)
        self.teacher = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4))
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.outer = Outer(self.model, lr=0.7, momentum=0.5, feeds_back=False)
        self.aggregation, self.liars, self.poison, self.since = aggregation, liars, poison, since
        self.first: dict[int, Tensor] = {}
        self.seen, self.credit = SeenUpdates(), Counter[str]()
        self.inner = self.new_inner()
        self.place, self.now, self.monitor = Place(0, 0), 0.0, Monitor()
        self.control = SwarmControl(members={}, banned=absent, clock=lambda: self.now) if control else None
        self.banned: list[str] = list(absent)
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
        claims = [STEPS * BATCH * (10 if self.lies(n) and self.poison == "fake" else 1) for n in peers]
        sent = {f"{n}": {"parts": digests(u, 200)} for n, (u, _) in zip(peers, learnt, strict=True)}
        repeated = self.seen.see(f"{self.place}", sent).repeated
        updates = [u * (math.nan if f"{n}" in repeated else 1.0) for n, (u, _) in zip(peers, learnt, strict=True)]
        average, odd = asyncio.run(self.reduce(updates, claims))
        self.outer.apply(average)
        self.place = Place(self.place.rollbacks, self.place.round + 1)
        self.shelf[self.place.round] = self.outer.tensors()
        if self.control is not None:
            names = [f"Qm{peers[n]}" for n in odd]
            told = zip(peers, learnt, claims, strict=True)
            self.judge({f"peer_{n}": self.tell(n, loss, names, peers, claim) for n, (_, loss), claim in told})

    def learn(self, peer: int) -> tuple[Tensor, float]:
        self.outer.write()
        losses = []
        self.rng = torch.Generator().manual_seed(1000 * peer + self.place.round)  # the same data, whoever else is there
        for _ in range(STEPS):
            self.inner[peer].zero_grad()
            loss = functional.cross_entropy(self.model((found := self.batch(BATCH))[0]), found[1])
            loss.backward()
            self.inner[peer].step()
            losses.append(loss.item())
        return self.lie(peer, self.outer.update()) if self.lies(peer) else self.outer.update(), sum(losses)

    def lies(self, peer: int) -> bool:
        return peer >= PEERS - self.liars and self.place.round >= self.since

    def lie(self, peer: int, update: Tensor) -> Tensor:
        match self.poison:
            case "shift":
                return update * -30 + 100
            case "fake":  # and it claims ten times the samples
                return torch.zeros_like(update)
            case "replay":
                return self.first.setdefault(peer, update)
        return update * POISON[self.poison]

    async def reduce(self, updates: list[Tensor], claims: list[int]) -> tuple[Tensor, list[int]]:
        """Aggregate in chunks, as peers do; also return who was an outlier in most of them."""
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
                    got.append((await reducer.accumulate_part(sender, number, chunk, float(claims[sender])))[1])
                except (BadTensor, BannedException):
                    reducer.on_sender_failed(sender)
                    return []
            return got

        got = await asyncio.gather(*map(send, range(len(updates))))
        refused = [n for n, parts in enumerate(got) if not parts]
        return torch.cat(got[0]), refused + [n for n, count in reducer.odd.items() if 2 * count > len(shapes)]

    def tell(self, peer: int, loss: float, odd: list[str], members: list[int], claim: int) -> Progress:
        return Progress(
            peer=f"peer_{peer}",
            p2p=f"Qm{peer}",
            round=self.place.round,
            rollbacks=self.place.rollbacks,
            loss=loss,
            mini_steps=STEPS,
            samples=claim,
            members=[f"Qm{n}" for n in members],
            judged=True,
            state_hash=f"{self.place.round}",
            odd=[name for name in odd if name != f"Qm{peer}"],
        )

    def judge(self, records: dict[str, Progress]) -> None:
        assert self.control is not None
        self.control.see(records)
        (settled,) = self.monitor.finished_rounds(records, self.now)
        self.events += self.control.judge(settled, records)
        self.credit.update(self.control.credit(settled))
        if self.control.is_new:
            order = self.control.current_commands()
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
def honest(peers: int = PEERS) -> float:
    """Return the loss of a run without malicious peers, in which none is suspected; with fewer peers the others are absent."""
    swarm = Swarm("mean", 0, "none", control=True, absent=[f"peer_{n}" for n in range(peers, PEERS)])
    found = swarm.run()
    assert swarm.events == []
    return found


@pytest.mark.parametrize(
    ("liars", "poison"),
    [(1, "x1000"), (1, "flip"), *((n, lie) for n in (1, 2) for lie in ("nan", "shift", "fake", "replay"))],
)
def test_liars_are_sent_away_within_five_rounds_earn_nothing_and_do_no_harm(liars: int, poison: str) -> None:
    swarm = Swarm("robust", liars, poison, control=True)
    loss = swarm.run()
    print(f"{liars} x {poison}: loss {loss:.4f}, of as many honest peers {honest(PEERS - liars):.4f}")
    assert loss < 1.02 * honest(PEERS - liars)
    false = {f"peer_{n}" for n in range(PEERS - liars, PEERS)}
    kicked = [event for event in swarm.events if event["event"] == "kicked"]
    assert {event["peer"] for event in kicked} == set(swarm.banned) == false
    assert all(event["evidence"][-1]["round"] <= 5 for event in kicked)
    assert {event["peer"] for event in swarm.events if event["event"] == "reported"} == false
    full = ROUNDS * STEPS * BATCH
    first = STEPS * BATCH if poison == "replay" else 0  # the first time it was no lie
    assert {peer: swarm.credit[peer] for peer in sorted(swarm.credit)} == {
        f"peer_{n}": first if f"peer_{n}" in false else full for n in range(PEERS)
    }


def test_without_it_two_liars_ruin_the_run() -> None:
    assert not Swarm("mean", 2, "flip x1000").run() < 10 * honest()


@pytest.mark.parametrize(("liars", "poison"), [(1, "flip x1000"), (2, "x1000")])
def test_without_it_the_rollback_saves_the_run(liars: int, poison: str) -> None:
    swarm = Swarm("mean", liars, poison, since=3, control=True)
    assert swarm.run() < 1.05 * honest()
    assert [event["to_round"] for event in swarm.events if event["event"] == "rollback"] == [3]
    assert swarm.banned == [f"peer_{n}" for n in range(PEERS - liars, PEERS)]
