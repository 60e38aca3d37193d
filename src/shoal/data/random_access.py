"""Random access to records by number, for map-style datasets and samplers."""

from __future__ import annotations

import importlib.util
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from itertools import accumulate
from typing import Any

from shoal.data.pool import pool
from shoal.data.reader import Reader

_KEPT = 4
"""Number of blocks kept in memory, for formats that cannot be read from the middle."""


class MapView:
    """View of all records in the order of the files, made by `Stream.as_map()`.

    It is neither shuffled nor divided among ranks: a sampler does that.
    """

    def __init__(self, reader: Reader, decode: Callable[[Any], Any] | None = None):
        self._reader, self._decode = reader, decode
        self._kept: OrderedDict[int, list[Any]] = OrderedDict()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Any:
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        number = bisect_right(self._ends, at)
        within = at - (self._ends[number - 1] if number else 0)
        record = self._reader.decode(number, self._raw(number, within))
        return record if self._decode is None else self._decode(record)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": OrderedDict()}

    @cached_property
    def _ends(self) -> list[int]:
        """Record numbers at which the blocks end. Blocks that are not counted yet are read now."""
        numbers = range(len(self._reader.blocks))
        counts = [pool.submit(self._reader.count, number) for number in numbers]
        return list(accumulate(count.result() for count in counts))

    def _raw(self, number: int, within: int) -> Any:
        known = self._reader.index.get(number)
        if known is not None and (known.marks or known.total == 1):
            return next(self._reader.records(number, within, alone=True))
        if number not in self._kept:
            self._kept[number] = list(self._reader.records(number))
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(number)
        return self._kept[number][within]


def make_view(reader: Reader, decode: Callable[[Any], Any] | None) -> MapView:
    if importlib.util.find_spec("torch") is None:
        return MapView(reader, decode)
    from shoal.data.torch_loading import TorchMap

    return TorchMap(reader, decode)
