"""Batches of samples of like length: many where they are short, few where they are long, so that each takes about as much memory.

The samples of an epoch go to buckets by their length, in the order of the epoch. The bucket that is full first gives the next
batch. What is left in the end goes into batches of mixed buckets, as large as the longest sample in them allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

from shoal.core.errors import UsageError
from shoal.sdk.order import epoch_order
from shoal.train.data.base import Batches, Items, Settings, Turn, at_least_one, share
from shoal.train.data.files import Read
from shoal.train.data.small import in_memory, may_draw

numpy: Any = import_module("numpy")


class Variable(Batches):
    """Batches by length.

    source       as for Small, or a RecordReader
    batch_size   the most samples per batch and rank for each length: {"<=30": 100, "<=128": 30}
    length       of each sample: a function of the sample as the source has it (len unless given), or all lengths in a list
    drop_longer  leave out samples longer than every bucket, instead of refusing them
    decode       called on each sample as it is fetched

    Batches differ in size, so train with `true_gradient`. More keywords: shoal.train.data.base.Settings.
    """

    def __init__(
        self,
        source: Any,
        batch_size: Mapping[str | int, int],
        *,
        length: Callable[[Any], int] | Sequence[int] = len,
        drop_longer: bool = False,
        decode: Callable[[Any], Any] | None = None,
        read: Read | None = None,
        **options: Any,
    ):
        samples = in_memory(source, read)
        self._limits, self._sizes = buckets(batch_size)
        lengths = [length(samples[i]) for i in range(len(samples))] if callable(length) else list(length)
        if len(lengths) != len(samples):
            raise UsageError(f"there are {len(lengths)} lengths for {len(samples)} samples")
        self._bucket = numpy.searchsorted(self._limits, numpy.asarray(lengths, dtype=numpy.int64))
        self._kept = numpy.flatnonzero(self._bucket < len(self._limits))
        if len(self._kept) < len(lengths) and not drop_longer:
            raise UsageError(
                f"{len(lengths) - len(self._kept)} of {len(lengths)} samples are longer than {self._limits[-1]}, "
                f"the longest is {max(lengths)}",
                hint=f'add a bucket, such as "<={max(lengths)}": {self._sizes[-1]}, or pass drop_longer=True',
            )
        super().__init__(Items(samples, decode), Settings.of(options), draws=may_draw(samples, decode))

    @property
    def samples(self) -> int:
        return len(self._kept)

    def turns(self, epoch: int, done: Any) -> Iterator[Turn]:
        rank, world = self._settings.place
        lanes = self._lanes(epoch)
        done = list(done)
        while (taken := self._next(lanes, done, world)) is not None:
            mine: list[int] = []
            count = sum(taken)
            low, high = share(count, rank, world)
            for lane, (_, samples) in enumerate(lanes):
                part = samples[done[lane] : done[lane] + taken[lane]]
                mine += part[max(0, low) : max(0, high)].tolist()
                low, high = low - len(part), high - len(part)
                done[lane] += taken[lane]
            yield Turn(epoch, mine, list(done))

    def _none_done(self) -> list[int]:
        return [0] * len(self._limits)

    def _lanes(self, epoch: int) -> list[tuple[Any, Any]]:
        """(positions in the epoch's order, samples) of each bucket, in that order."""
        order = epoch_order(self.samples, self._settings.seed, epoch, shuffle=self._settings.shuffle)
        samples = self._kept[numpy.asarray(order.part(0, self.samples), dtype=numpy.int64)]
        of = self._bucket[samples]
        positions = [numpy.flatnonzero(of == lane) for lane in range(len(self._limits))]
        return [(at, samples[at]) for at in positions]

    def _next(self, lanes: list[tuple[Any, Any]], done: list[int], world: int) -> list[int] | None:
        """How many samples of each bucket make the next batch of all ranks. Follows from what is done, whoever did it."""
        left = [len(samples) - over for (_, samples), over in zip(lanes, done, strict=True)]
        if not sum(left):
            return None
        full = [size * world for size in self._sizes]
        ready = [lane for lane, count in enumerate(full) if left[lane] >= count]
        taken = [0] * len(left)
        if ready:
            first = min(ready, key=lambda lane: int(lanes[lane][0][done[lane] + full[lane] - 1]))
            taken[first] = full[first]
        else:
            taken = self._mixed(left, world)
        rest = sum(left) - sum(taken)
        if 0 < rest < world:
            # Less than one sample per rank would remain: some wait to join it, or all come now.
            if sum(left) >= 2 * world:
                _give_back(taken, world - rest)
            else:
                taken = left
        return taken

    def _mixed(self, left: list[int], world: int) -> list[int]:
        """From the shortest up, as many as the longest among them allows."""
        taken, count, most = [0] * len(left), 0, 0
        for lane, available in enumerate(left):
            if not available:
                continue
            most = min(most, self._sizes[lane] * world) if count else self._sizes[lane] * world
            taken[lane] = max(0, min(available, most - count))
            count += taken[lane]
            if taken[lane] < available:
                break
        return taken


def buckets(batch_size: Mapping[str | int, int]) -> tuple[list[int], list[int]]:
    """Limits in ascending order, and the batch size of each."""
    if not isinstance(batch_size, Mapping) or not batch_size:
        raise UsageError(
            f"batch_size is {batch_size!r}, and should say it for each length", hint='{"<=30": 100, "<=128": 30}'
        )
    found = sorted((_limit(key), at_least_one(f"the batch size of {key}", size)) for key, size in batch_size.items())
    for (one, _), (other, _) in pairwise(found):
        if one == other:
            raise UsageError(f"there are two batch sizes for lengths up to {one}")
    return [limit for limit, _ in found], [size for _, size in found]


def _limit(key: str | int) -> int:
    text = str(key).replace(" ", "").removeprefix("<=")
    if not text.isdigit():
        raise UsageError(f"{key!r} is not a length", hint='write "<=30" for lengths up to 30')
    return int(text)


def _give_back(taken: list[int], count: int) -> None:
    for lane in reversed(range(len(taken))):
        back = min(count, taken[lane])
        taken[lane] -= back
        count -= back
