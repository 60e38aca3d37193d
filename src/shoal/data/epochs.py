"""One pass over all blocks, in the order of an epoch, reading ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from shoal.data.order import Deal, Place, permutation, walk, width
from shoal.data.reader import BlockCursor, Reader

_AHEAD = 16
"""Number of blocks whose first bytes are read before they are needed."""
_PLANNED = 2048
"""Number of samples that are planned ahead to find those blocks."""
_UNSHUFFLED_GROUP = 256

Sample = tuple[int, int, Any]
"""Position, number of the block, raw record."""


class Epoch:
    def __init__(self, reader: Reader, *, shuffle: bool, seed: int, epoch: int, shuffle_buffer: int):
        self._reader = reader
        self._key = (seed, epoch) if shuffle else None
        count = len(reader.blocks)
        self._blocks: Sequence[int] = permutation(count, *self._key, "blocks") if self._key else range(count)
        self._cursors = width(count) if shuffle else min(1, count)
        self._group = max(1, shuffle_buffer // max(1, self._cursors)) if shuffle else _UNSHUFFLED_GROUP

    def samples(
        self, deal: Deal, place: Place, low: int, note: Callable[[Place], None]
    ) -> Generator[Sample, None, int]:
        """Yield this reader's samples from position `low` on. Return the length of the epoch."""
        self._reader.index.refresh()
        if self._reader.index.is_complete:
            return self._planned(deal, place, low, note)
        return self._as_found(deal, place, low, note)

    def _planned(
        self, deal: Deal, place: Place, low: int, note: Callable[[Place], None]
    ) -> Generator[Sample, None, int]:
        """Yield samples when all counts are known: the walk reads nothing, so it runs ahead and starts to read blocks."""
        if self._reader.index.is_certain:
            note = _ignore
        route = walk(len(self._blocks), self._cursors, self._open_cursor, deal, place=place, low=low, note=note)
        plan: deque[tuple[int, BlockCursor, int]] = deque()
        coming: set[BlockCursor] = set()
        length: int | None = None
        while True:
            while length is None and len(plan) < _PLANNED and len(coming) < _AHEAD:
                try:
                    plan.append(next(route))
                except StopIteration as stop:
                    length = int(stop.value)
                    break
                cursor = plan[-1][1]
                if not cursor.is_open and cursor not in coming:
                    coming.add(cursor)
                    self._reader.warm(cursor.number)
            if not plan:
                return length or 0
            position, cursor, turn = plan.popleft()
            coming.discard(cursor)
            yield position, cursor.number, cursor.get(turn)

    def _as_found(
        self, deal: Deal, place: Place, low: int, note: Callable[[Place], None]
    ) -> Generator[Sample, None, int]:
        """Yield samples when some counts are unknown.

        Every reader has to read those blocks to find their end, also blocks with samples of other readers only. So the next
        blocks are read ahead in order, one more for each block that is opened.
        """
        coming = iter(self._blocks[place.taken :])

        def warm_next() -> None:
            if (number := next(coming, None)) is not None:
                self._reader.warm(number)

        for _ in range(_AHEAD):
            warm_next()
        take = partial(self._open_cursor, opened=warm_next)
        route = walk(len(self._blocks), self._cursors, take, deal, place=place, low=low, note=note)
        while True:
            try:
                position, cursor, turn = next(route)
            except StopIteration as stop:
                return int(stop.value)
            yield position, cursor.number, cursor.get(turn)

    def _open_cursor(self, block: int, start: int, opened: Callable[[], None] = lambda: None) -> BlockCursor:
        number = self._blocks[block]
        return BlockCursor(self._reader, block, number, start, group=self._group, key=self._key, opened=opened)


def _ignore(place: Place) -> None:
    """Note nothing: a process that resumes knows all counts too, and computes the place from them."""
