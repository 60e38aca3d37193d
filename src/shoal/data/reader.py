"""Read blocks: their records from any number on, and in the shuffled order of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from shoal.core.errors import InvalidSpec
from shoal.data.formats import Block, Format
from shoal.data.index import MARK, Counted, Index
from shoal.data.order import permutation
from shoal.data.source import Source


class Reader:
    """Blocks of a source and their index."""

    def __init__(self, source: Source, kind: Format, blocks: Sequence[Block], index: Index):
        self.source, self.kind, self.blocks, self.index = source, kind, blocks, index

    def records(self, number: int, start: int = 0, *, alone: bool = False) -> Iterator[Any]:
        """Yield the raw records of a block, from the `start`-th on; `alone`: only that one is needed."""
        block, known = self.blocks[number], self.index.get(number)
        marks = known.marks if known is not None else ()
        mark = min(start // MARK, len(marks) - 1) if marks else 0
        if alone and mark + 1 < len(marks):
            block = block._replace(end=marks[mark + 1])
        found = self.kind.records(self.source, block, marks[mark] if mark else None)
        if known is None:
            found = self._learning(number, found)
        try:
            for _, raw in islice(found, start - mark * MARK, None):
                yield raw
        except ValueError as error:
            raise self._malformed(number, error) from error

    def decode(self, number: int, raw: Any) -> Any:
        try:
            return self.kind.decode(self.source, raw)
        except ValueError as error:
            raise self._malformed(number, error) from error

    def warm(self, number: int) -> None:
        self.kind.warm(self.source, self.blocks[number])

    def count(self, number: int) -> int:
        """Return the number of records of a block; read the block if it is unknown."""
        known = self.index.get(number)
        return known.total if known is not None else sum(1 for _ in self.records(number))

    def _learning(self, number: int, found: Iterator[tuple[int | None, Any]]) -> Iterator[tuple[int | None, Any]]:
        count, marks = 0, []
        for offset, raw in found:
            if offset is not None and count % MARK == 0:
                marks.append(offset)
            count += 1
            yield offset, raw
        self.index.learn(number, Counted(count, tuple(marks)))

    def _malformed(self, number: int, error: ValueError) -> InvalidSpec:
        return InvalidSpec(f"{self.source.label}: {self.blocks[number].path} is malformed: {error}")


class BlockCursor:
    """Cursor over one block: reads it in order and shuffles within groups, so that only one group is in memory."""

    def __init__(
        self,
        reader: Reader,
        block: int,
        number: int,
        start: int,
        *,
        group: int,
        key: tuple[object, ...] | None,
        opened: Callable[[], None] = lambda: None,
    ):
        known = reader.index.get(number)
        self.block, self.number, self.start = block, number, start
        self._count = known.total if known is not None else None
        self._reader, self._group, self._key, self._opened = reader, group, key, opened
        self._records: Iterator[Any] | None = None
        self._next, self._loaded = 0, -1
        self._raw: list[Any] = []
        self._order: Sequence[int] | None = None

    @property
    def end(self) -> int | None:
        return None if self._count is None else self.start + self._count

    @property
    def is_open(self) -> bool:
        """True if some records of the block were read."""
        return self._loaded >= 0

    def has(self, turn: int) -> bool:
        if self._count is None:
            self._load((turn - self.start) // self._group)
        return self._count is None or turn - self.start < self._count

    def get(self, turn: int) -> Any:
        """Return the raw record of this turn. Turns must be requested in ascending order."""
        group, within = divmod(turn - self.start, self._group)
        if group != self._loaded:
            self._load(group)
        if self._order is None:
            size = len(self._raw)
            self._order = range(size) if self._key is None else permutation(size, *self._key, self.number, group)
        return self._raw[self._order[within]]

    def _load(self, group: int) -> None:
        if group == self._loaded:
            return
        first = group * self._group
        if self._records is None:
            self._opened()
        if self._records is None or self._next > first:
            self._records = self._reader.records(self.number, first)
        else:
            next(islice(self._records, first - self._next, first - self._next), None)
        self._raw = list(islice(self._records, self._group))
        self._next, self._loaded = first + len(self._raw), group
        if len(self._raw) < self._group and self._count is None:
            self._count = self._next
        self._order = None
