"""One pass over all blocks: rows of lanes, read ahead, dealt to this reader."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from shoal.data.order import LANES, Deal, deal_counted, deal_uncounted, permutation
from shoal.data.reader import BlockLane, Reader

_AHEAD = 16
"""Blocks whose first bytes are read before they are needed."""
_UNSHUFFLED_GROUP = 256


class Cursor(NamedTuple):
    """A place in an epoch. Row and row_start may be earlier than they could be; that costs time, never correctness."""

    position: int = 0
    row: int = 0
    row_start: int = 0
    """Position of the row's first sample."""


class Epoch:
    """The order of one epoch. `entered(row, row_start)` is called when a walk comes to a row."""

    def __init__(self, reader: Reader, *, shuffle: bool, seed: int, epoch: int, shuffle_buffer: int):
        self.reader = reader
        self._key = (seed, epoch) if shuffle else None
        self._buffer = shuffle_buffer
        self._lanes = LANES if shuffle else 1
        number = len(reader.blocks)
        self._blocks: Sequence[int] = permutation(number, *self._key, "blocks") if self._key else range(number)
        self.rows = -(-number // self._lanes)

    def walk(
        self, deal: Deal, start: Cursor, entered: Callable[[int, int], None]
    ) -> Generator[tuple[int, int, Any], None, int]:
        """(position, block, raw record) of this reader's samples from the cursor on. Returns the epoch's length."""
        at = start.row_start
        ahead = _Ahead(self, deal, start)
        for row in range(start.row, self.rows):
            entered(row, at)
            self.reader.index.refresh()
            ahead.come_to(row, at)
            lanes, counts = self._row(row, ahead.step), self.counts(row)
            if counts is not None:
                for position, lane, turn in deal_counted(counts, at, deal, start.position):
                    yield position, lanes[lane].number, lanes[lane].get(turn)
                at += sum(counts)
            else:
                at = yield from self._read_uncounted(lanes, at, deal, start.position)
        return at

    def _read_uncounted(
        self, lanes: list[BlockLane], at: int, deal: Deal, low: int
    ) -> Generator[tuple[int, int, Any], None, int]:
        dealt = deal_uncounted(lanes, at, deal, low)
        while True:
            try:
                position, lane, turn = next(dealt)
            except StopIteration as stop:
                return int(stop.value)
            yield position, lanes[lane].number, lanes[lane].get(turn)

    def numbers(self, row: int) -> Sequence[int]:
        """The blocks of a row."""
        return self._blocks[row * self._lanes : (row + 1) * self._lanes]

    def counts(self, row: int) -> list[int] | None:
        """How many records they have, if that is known of all."""
        known = [self.reader.index.get(number) for number in self.numbers(row)]
        return [k.total for k in known if k is not None] if None not in known else None

    def _row(self, row: int, opened: Callable[[], None]) -> list[BlockLane]:
        blocks = self.numbers(row)
        group = max(1, self._buffer // len(blocks)) if self._key else _UNSHUFFLED_GROUP
        return [BlockLane(self.reader, number, group, self._key, opened) for number in blocks]


class _Ahead:
    """Begins to read blocks shortly before the walk comes to them: one more for each one opened."""

    def __init__(self, epoch: Epoch, deal: Deal, start: Cursor):
        self._epoch, self._deal, self._low = epoch, deal, start.position
        self._known_to = -1
        self._coming: Iterator[int] = iter(())

    def come_to(self, row: int, at: int) -> None:
        if row <= self._known_to:
            return
        self._coming = self._needed(row, at)
        for _ in range(_AHEAD):
            self.step()

    def step(self) -> None:
        number = next(self._coming, None)
        if number is not None:
            self._epoch.reader.warm(number)

    def _needed(self, row: int, at: int) -> Iterator[int]:
        """Blocks in the order they are needed, up to a row where only reading it tells what comes after."""
        for coming in range(row, self._epoch.rows):
            self._known_to = coming
            numbers, counts = self._epoch.numbers(coming), self._epoch.counts(coming)
            if counts is None:
                yield from numbers
                return
            dealt = deal_counted(counts, at, self._deal, self._low)
            yield from (numbers[lane] for lane in dict.fromkeys(lane for _, lane, _ in islice(dealt, 2 * LANES)))
            at += sum(counts)
