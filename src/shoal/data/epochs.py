"""One pass over all blocks: its order, read a little ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from shoal.data.order import Deal, Place, permutation, walk, width
from shoal.data.reader import BlockLane, Reader

_AHEAD = 16
"""Blocks whose first bytes are read before they are needed."""
_PLANNED = 2048
"""Samples looked ahead to find them."""
_UNSHUFFLED_GROUP = 256

Sample = tuple[int, int, Any]
"""Position, number of the block, raw record."""


class Epoch:
    def __init__(self, reader: Reader, *, shuffle: bool, seed: int, epoch: int, shuffle_buffer: int):
        self._reader = reader
        self._key = (seed, epoch) if shuffle else None
        count = len(reader.blocks)
        self._blocks: Sequence[int] = permutation(count, *self._key, "blocks") if self._key else range(count)
        self._lanes = width(count) if shuffle else min(1, count)
        self._group = max(1, shuffle_buffer // max(1, self._lanes)) if shuffle else _UNSHUFFLED_GROUP

    def samples(
        self, deal: Deal, place: Place, low: int, note: Callable[[Place], None]
    ) -> Generator[Sample, None, int]:
        """This reader's samples from position `low` on. Returns the epoch's length."""
        self._reader.index.refresh()
        if self._reader.index.is_complete:
            return self._planned(deal, place, low, note)
        return self._as_found(deal, place, low, note)

    def _planned(
        self, deal: Deal, place: Place, low: int, note: Callable[[Place], None]
    ) -> Generator[Sample, None, int]:
        """All counts are known, so the walk itself reads nothing: it runs ahead, and the blocks it comes to are warmed."""
        if self._reader.index.is_certain:
            note = _needless
        route = walk(len(self._blocks), self._lanes, self._take, deal, place=place, low=low, note=note)
        plan: deque[tuple[int, BlockLane, int]] = deque()
        coming: set[BlockLane] = set()
        length: int | None = None
        while True:
            while length is None and len(plan) < _PLANNED and len(coming) < _AHEAD:
                try:
                    plan.append(next(route))
                except StopIteration as stop:
                    length = int(stop.value)
                    break
                lane = plan[-1][1]
                if not lane.is_open and lane not in coming:
                    coming.add(lane)
                    self._reader.warm(lane.number)
            if not plan:
                return length or 0
            position, lane, turn = plan.popleft()
            coming.discard(lane)
            yield position, lane.number, lane.get(turn)

    def _as_found(
        self, deal: Deal, place: Place, low: int, note: Callable[[Place], None]
    ) -> Generator[Sample, None, int]:
        """Some blocks have to be read to know where they end, whoever owns their samples: all are warmed, one for each opened."""
        coming = iter(self._blocks[place.taken :])

        def warm_next() -> None:
            if (number := next(coming, None)) is not None:
                self._reader.warm(number)

        for _ in range(_AHEAD):
            warm_next()
        take = partial(self._take, opened=warm_next)
        route = walk(len(self._blocks), self._lanes, take, deal, place=place, low=low, note=note)
        while True:
            try:
                position, lane, turn = next(route)
            except StopIteration as stop:
                return int(stop.value)
            yield position, lane.number, lane.get(turn)

    def _take(self, block: int, start: int, opened: Callable[[], None] = lambda: None) -> BlockLane:
        number = self._blocks[block]
        return BlockLane(self._reader, block, number, start, group=self._group, key=self._key, opened=opened)


def _needless(place: Place) -> None:
    """Whoever resumes has the counts too, and finds the place by them."""
