"""The order of samples, and who gets which: arithmetic without I/O.

An epoch's order depends on (seed, epoch) and the list of blocks, never on who reads it. Blocks are shuffled; LANES of them at a
time make a row; a row's records are taken from its blocks in turn, skipping blocks that have run out. The sample at position p
goes to rank (p - base) mod world size, so whole blocks fall to one rank where the world size divides LANES.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple, Protocol

LANES = 48
"""Blocks read side by side: a multiple of most world sizes. Part of the order's meaning; changing it breaks saved states."""


class Deal(NamedTuple):
    """One reader's share: a rank's, or that of a DataLoader worker, which takes every n-th batch of its rank."""

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1
    batch_size: int = 1
    base: int = 0
    """Position where dealing begins: 0, or where a resumed epoch goes on."""

    def owns(self, position: int) -> bool:
        turn, rank = divmod(position - self.base, self.world_size)
        return turn >= 0 and rank == self.rank and turn // self.batch_size % self.num_workers == self.worker

    def positions(self, low: int, high: int) -> Iterator[int]:
        """This reader's positions in [low, high), ascending."""
        turn = max(0, -(-(low - self.base - self.rank) // self.world_size))
        if self.num_workers == 1:
            yield from range(self.base + self.rank + turn * self.world_size, high, self.world_size)
            return
        while True:
            batch = turn // self.batch_size
            if skip := (self.worker - batch) % self.num_workers:
                turn = (batch + skip) * self.batch_size
            stop = (turn // self.batch_size + 1) * self.batch_size
            first = self.base + self.rank + turn * self.world_size
            if first >= high:
                return
            yield from range(first, min(high, first + (stop - turn) * self.world_size), self.world_size)
            turn = stop

    def round_end(self, position: int) -> int:
        """Where the round of this position ends: by then every rank has had as many samples."""
        return position - (position - self.base) % self.world_size + self.world_size


class Lane(Protocol):
    def has(self, turn: int) -> bool:
        """Whether its block holds more than `turn` records."""
        ...


def permutation(length: int, *key: object) -> list[int]:
    """The same for the same key on every machine and Python: `random()` is the one part of random that never changes."""
    seed = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=16).digest()
    draw = random.Random(int.from_bytes(seed, "big")).random  # noqa: S311  order, not secrets
    keys = [draw() for _ in range(length)]
    return sorted(range(length), key=keys.__getitem__)


def deal_counted(counts: Sequence[int], start: int, deal: Deal, low: int) -> Iterator[tuple[int, int, int]]:
    """(position, lane, turn) of a reader's samples from `low` on, in a row that begins at `start`; reads nothing."""
    turn = 0
    lanes = [lane for lane, count in enumerate(counts) if count]
    while lanes:
        dry = min(counts[lane] for lane in lanes)
        width, end = len(lanes), start + len(lanes) * (dry - turn)
        for position in deal.positions(max(start, low), end):
            ahead, at = divmod(position - start, width)
            yield position, lanes[at], turn + ahead
        start, turn = end, dry
        lanes = [lane for lane in lanes if counts[lane] > turn]


def deal_uncounted(
    lanes: Sequence[Lane], start: int, deal: Deal, low: int
) -> Generator[tuple[int, int, int], None, int]:
    """The same where counts are not known: every lane is asked in turn. Returns where the row ends."""
    turn, position = 0, start
    alive = list(range(len(lanes)))
    while alive:
        still = []
        for lane in alive:
            if not lanes[lane].has(turn):
                continue
            still.append(lane)
            if position >= low and deal.owns(position):
                yield position, lane, turn
            position += 1
        alive, turn = still, turn + 1
    return position
