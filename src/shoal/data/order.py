"""The order of samples, and who gets which: arithmetic without I/O.

An epoch's order depends on (seed, epoch) and the list of blocks, never on who reads it. Blocks are shuffled. Up to 48 lanes
take turns giving a record each; a lane whose block has run out takes the next block that no lane has had. The sample at
position p goes to rank (p - base) mod world size: where the world size divides the lanes, a rank reads lanes of its own.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple, Protocol, TypeVar

WIDTHS = (48, 24, 12, 8, 6, 4, 3, 2, 1)
"""Numbers of lanes: multiples of most world sizes. Part of the order's meaning; changing them breaks saved states."""


class Place(NamedTuple):
    """Where a walk stands between two turns."""

    at: int = 0
    """Position of the turn's first sample."""
    turn: int = 0
    taken: int = 0
    """Blocks that lanes have taken so far."""
    lanes: tuple[tuple[int, int], ...] = ()
    """(block, the turn it was taken) of each lane that is not over."""


BEGINNING = Place()


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
    @property
    def block(self) -> int: ...

    @property
    def start(self) -> int:
        """The turn its block was taken."""
        ...

    @property
    def end(self) -> int | None:
        """The first turn it has no record for, if that is known."""
        ...

    def has(self, turn: int) -> bool:
        """Whether it has a record for this turn; may have to read to tell."""
        ...


AnyLane = TypeVar("AnyLane", bound=Lane)


def width(blocks: int) -> int:
    """How many lanes share so many blocks."""
    return next((n for n in WIDTHS if n <= blocks), 0)


def permutation(length: int, *key: object) -> list[int]:
    """The same for the same key on every machine and Python: `random()` is the one part of random that never changes."""
    seed = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=16).digest()
    draw = random.Random(int.from_bytes(seed, "big")).random  # noqa: S311  order, not secrets
    keys = [draw() for _ in range(length)]
    return sorted(range(length), key=keys.__getitem__)


def walk(
    blocks: int,
    lanes: int,
    take: Callable[[int, int], AnyLane],
    deal: Deal,
    *,
    place: Place = BEGINNING,
    low: int = 0,
    note: Callable[[Place], None] = lambda place: None,
) -> Generator[tuple[int, AnyLane, int], None, int]:
    """(position, lane, turn) of a reader's samples from position `low` on; returns the order's length.

    `take(block, turn)` makes a lane begin a block. `note` is told a place now and then, from which a walk can begin again.
    """
    at, turn, taken = place.at, place.turn, place.taken
    alive = [take(block, start) for block, start in place.lanes]
    if not taken:
        alive = [take(block, 0) for block in range(lanes)]
        taken = lanes
    noted = taken
    while alive:
        if taken >= noted + lanes:
            noted = taken
            note(Place(at, turn, taken, tuple((lane.block, lane.start) for lane in alive)))
        ends = [lane.end for lane in alive]
        stop = turn if None in ends else min(end for end in ends if end is not None)
        if stop > turn:
            high = at + len(alive) * (stop - turn)
            for position in deal.positions(max(at, low), high):
                ahead, number = divmod(position - at, len(alive))
                yield position, alive[number], turn + ahead
            at, turn = high, stop
        # In this turn a lane ends, or may: each is asked, in order, and yields before the next has to read.
        going = []
        for lane in alive:
            while not (goes_on := lane.has(turn)) and taken < blocks:
                lane = take(taken, turn)
                taken += 1
            if goes_on:
                going.append(lane)
                if at >= low and deal.owns(at):
                    yield at, lane, turn
                at += 1
        alive, turn = going, turn + 1
    return at
