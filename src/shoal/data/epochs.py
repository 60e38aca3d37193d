"""One pass over all blocks: rows of lanes, read ahead, dealt to this reader."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any, NamedTuple

from shoal.data.order import LANES, Deal, deal_counted, deal_uncounted, permutation
from shoal.data.reader import BlockLane, Reader

_AHEAD = 32
"""Lanes of later rows whose first bytes are read in advance."""
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
        self._reader = reader
        self._key = (seed, epoch) if shuffle else None
        self._buffer = shuffle_buffer
        self._lanes = LANES if shuffle else 1
        number = len(reader.blocks)
        self._blocks = permutation(number, *self._key, "blocks") if self._key else range(number)
        self.rows = -(-number // self._lanes)

    def walk(
        self, deal: Deal, start: Cursor, entered: Callable[[int, int], None]
    ) -> Generator[tuple[int, int, Any], None, int]:
        """(position, block, raw record) of this reader's samples from the cursor on. Returns the epoch's length."""
        at = start.row_start
        ahead = _Ahead(self, deal, start)
        for row in range(start.row, self.rows):
            entered(row, at)
            self._reader.index.refresh()
            ahead.come_to(row, at)
            lanes = self._row(row)
            counts = self._counts(row)
            if counts is not None:
                yield from _read(lanes, deal_counted(counts, at, deal, start.position))
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

    def _row(self, row: int) -> list[BlockLane]:
        blocks = self._numbers(row)
        group = max(1, self._buffer // len(blocks)) if self._key else _UNSHUFFLED_GROUP
        return [BlockLane(self._reader, number, group, self._key) for number in blocks]

    def _numbers(self, row: int) -> list[int]:
        return list(self._blocks[row * self._lanes : (row + 1) * self._lanes])

    def _counts(self, row: int) -> list[int] | None:
        known = [self._reader.index.get(number) for number in self._numbers(row)]
        return [k.count for k in known if k is not None] if None not in known else None


class _Ahead:
    """Begins to read what a walk will need next: this row's blocks, and some of the rows after it."""

    def __init__(self, epoch: Epoch, deal: Deal, start: Cursor):
        self._epoch, self._deal, self._low = epoch, deal, start.position
        self._row, self._at = start.row, start.row_start
        self._begun: dict[int, int] = {}

    def come_to(self, row: int, at: int) -> None:
        if self._row < row:
            self._row, self._at = row, at
        self._begun = {r: lanes for r, lanes in self._begun.items() if r > row}
        while self._row < self._epoch.rows and (self._row == row or sum(self._begun.values()) < _AHEAD):
            lanes = self._lanes(self._row)
            if lanes is None and self._row > row:
                return
            numbers = self._epoch._numbers(self._row)
            for lane in range(len(numbers)) if lanes is None else lanes:
                self._epoch._reader.warm(numbers[lane])
            self._begun[self._row] = max(1, len(lanes or numbers))
            self._at += sum(self._epoch._counts(self._row) or ())
            self._row += 1
            if lanes is None:
                return

    def _lanes(self, row: int) -> list[int] | None:
        """The lanes this reader needs first; None if only reading can tell."""
        counts = self._epoch._counts(row)
        if counts is None:
            return None
        dealt = deal_counted(counts, self._at, self._deal, self._low)
        return list(dict.fromkeys(lane for _, lane, _ in islice(dealt, 2 * LANES)))


def _read(lanes: list[BlockLane], dealt: Iterator[tuple[int, int, int]]) -> Iterator[tuple[int, int, Any]]:
    for position, lane, turn in dealt:
        yield position, lanes[lane].number, lanes[lane].get(turn)
