"""Order of the samples of a stream and their division among readers: arithmetic without I/O.

The order of an epoch depends on (seed, epoch) and the list of blocks, never on the readers. Blocks are shuffled. Up to 48
cursors take turns and yield a record each; a cursor whose block is exhausted takes the next unused block. The sample at
position p goes to rank (p - base) mod world size: if the world size divides the number of cursors, each rank reads its own
cursors.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple, Protocol, TypeVar

WIDTHS = (48, 24, 12, 8, 6, 4, 3, 2, 1)
"""Possible numbers of cursors: multiples of most world sizes. They define the order: changing them breaks saved states."""


class Place(NamedTuple):
    """Position of a walk between two turns."""

    at: int = 0
    """Position of the turn's first sample."""
    turn: int = 0
    taken: int = 0
    """Number of blocks that cursors have taken so far."""
    cursors: tuple[tuple[int, int], ...] = ()
    """(block, turn in which it was taken) of each cursor that is not exhausted."""


BEGINNING = Place()


class Deal(NamedTuple):
    """Share of one reader: a rank, or a DataLoader worker that reads every n-th batch of its rank."""

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1
    batch_size: int = 1
    base: int = 0
    """Position at which the division begins: 0, or the position at which an epoch is resumed."""

    def owns(self, position: int) -> bool:
        turn, rank = divmod(position - self.base, self.world_size)
        return turn >= 0 and rank == self.rank and turn // self.batch_size % self.num_workers == self.worker

    def positions(self, low: int, high: int) -> Iterator[int]:
        """Yield this reader's positions in [low, high), ascending."""
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
        """Return the end of the round of this position: there, every rank has had the same number of samples."""
        return position - (position - self.base) % self.world_size + self.world_size


class Cursor(Protocol):
    @property
    def block(self) -> int: ...

    @property
    def start(self) -> int:
        """Turn in which its block was taken."""
        ...

    @property
    def end(self) -> int | None:
        """First turn for which it has no record; None if unknown."""
        ...

    def has(self, turn: int) -> bool:
        """Check whether it has a record for this turn; this may read data."""
        ...


AnyCursor = TypeVar("AnyCursor", bound=Cursor)


def width(blocks: int) -> int:
    """Return the number of cursors for a number of blocks."""
    return next((n for n in WIDTHS if n <= blocks), 0)


def permutation(length: int, *key: object) -> list[int]:
    """Return a permutation of range(length) that is the same for a key on every machine and Python version.

    It uses `random()`, the only part of the random module whose results are guaranteed not to change.
    """
    seed = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=16).digest()
    draw = random.Random(int.from_bytes(seed, "big")).random  # noqa: S311  order, not secrets
    keys = [draw() for _ in range(length)]
    return sorted(range(length), key=keys.__getitem__)


def walk(
    blocks: int,
    cursors: int,
    take: Callable[[int, int], AnyCursor],
    deal: Deal,
    *,
    place: Place = BEGINNING,
    low: int = 0,
    note: Callable[[Place], None] = lambda place: None,
) -> Generator[tuple[int, AnyCursor, int], None, int]:
    """Yield (position, cursor, turn) of a reader's samples from position `low` on; return the length of the order.

    Args:
        blocks: Number of blocks.
        cursors: Number of cursors.
        take: `take(block, turn)` returns a cursor that begins a block.
        deal: Share of the reader.
        place: Place at which to begin.
        low: First position to yield.
        note: Called from time to time with a place at which another walk can begin.
    """
    at, turn, taken = place.at, place.turn, place.taken
    alive = [take(block, start) for block, start in place.cursors]
    if not taken:
        alive = [take(block, 0) for block in range(cursors)]
        taken = cursors
    noted = taken
    while alive:
        if taken >= noted + cursors:
            noted = taken
            note(Place(at, turn, taken, tuple((cursor.block, cursor.start) for cursor in alive)))
        ends = [cursor.end for cursor in alive]
        stop = turn if None in ends else min(end for end in ends if end is not None)
        if stop > turn:
            high = at + len(alive) * (stop - turn)
            for position in deal.positions(max(at, low), high):
                ahead, number = divmod(position - at, len(alive))
                yield position, alive[number], turn + ahead
            at, turn = high, stop
        # In this turn a cursor ends, or may end. Check them in order; each yields before the next has to read.
        remaining = []
        for cursor in alive:
            while not (has_record := cursor.has(turn)) and taken < blocks:
                cursor = take(taken, turn)
                taken += 1
            if has_record:
                remaining.append(cursor)
                if at >= low and deal.owns(at):
                    yield at, cursor, turn
                at += 1
        alive, turn = remaining, turn + 1
    return at
