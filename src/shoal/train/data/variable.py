"""Batches of samples of similar length. Short samples make large batches, so that all need about the same memory.

The samples of an epoch are put into buckets by length, in the order of the epoch. The bucket that is full first gives the
next batch. The rest at the end goes into batches of mixed buckets, as large as the longest sample in them allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

from shoal.core.errors import UsageError
from shoal.sdk.samples.order import epoch_order
from shoal.train.data.base import Batches, Items, Settings, Turn, at_least_one, share
from shoal.train.data.files import Read
from shoal.train.data.small import in_memory, may_draw

numpy: Any = import_module("numpy")


class Variable(Batches):
    """Batches of samples of similar length. Batches differ in size, so train with `true_gradient`.

    Args:
        source: As for Small, or a RecordReader.
        batch_size: Maximum samples per batch and rank for each length: {"<=30": 100, "<=128": 30}.
        length: Function that returns the length of a sample before `decode`, or a list of all lengths.
        drop_longer: Leave out samples longer than every bucket; otherwise they raise UsageError.
        decode: Called on each sample when it is fetched.
        read: As for Small.
        **options: Fields of shoal.train.data.base.Settings.

    Example:
        >>> data = Variable(texts, {"<=30": 100, "<=128": 30}, length=lambda sample: len(sample["tokens"]))
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
        buckets = self._buckets(epoch)
        done = list(done)
        while (taken := self._next(buckets, done, world)) is not None:
            mine: list[int] = []
            count = sum(taken)
            low, high = share(count, rank, world)
            for number, (_, samples) in enumerate(buckets):
                part = samples[done[number] : done[number] + taken[number]]
                mine += part[max(0, low) : max(0, high)].tolist()
                low, high = low - len(part), high - len(part)
                done[number] += taken[number]
            yield Turn(epoch, mine, list(done))

    def _none_done(self) -> list[int]:
        return [0] * len(self._limits)

    def _buckets(self, epoch: int) -> list[tuple[Any, Any]]:
        """Return, for each bucket, the positions in the epoch's order and the samples there."""
        order = epoch_order(self.samples, self._settings.seed, epoch, shuffle=self._settings.shuffle)
        samples = self._kept[numpy.asarray(order.part(0, self.samples), dtype=numpy.int64)]
        of = self._bucket[samples]
        positions = [numpy.flatnonzero(of == number) for number in range(len(self._limits))]
        return [(at, samples[at]) for at in positions]

    def _next(self, buckets: list[tuple[Any, Any]], done: list[int], world: int) -> list[int] | None:
        """Return the samples of each bucket in the next global batch. It depends only on `done`, so all ranks agree."""
        left = [len(samples) - over for (_, samples), over in zip(buckets, done, strict=True)]
        if not sum(left):
            return None
        full = [size * world for size in self._sizes]
        ready = [number for number, count in enumerate(full) if left[number] >= count]
        taken = [0] * len(left)
        if ready:
            first = min(ready, key=lambda number: int(buckets[number][0][done[number] + full[number] - 1]))
            taken[first] = full[first]
        else:
            taken = self._mixed(left, world)
        rest = sum(left) - sum(taken)
        if 0 < rest < world:
            # Less than one sample per rank would remain: move some samples to that rest, or take all of them now.
            if sum(left) >= 2 * world:
                _give_back(taken, world - rest)
            else:
                taken = left
        return taken

    def _mixed(self, left: list[int], world: int) -> list[int]:
        """Return a batch of the shortest samples left, as many as the longest among them allows."""
        taken, count, most = [0] * len(left), 0, 0
        for number, available in enumerate(left):
            if not available:
                continue
            most = min(most, self._sizes[number] * world) if count else self._sizes[number] * world
            taken[number] = max(0, min(available, most - count))
            count += taken[number]
            if taken[number] < available:
                break
        return taken


def buckets(batch_size: Mapping[str | int, int]) -> tuple[list[int], list[int]]:
    """Return the length limits in ascending order, and the batch size of each."""
    if not isinstance(batch_size, Mapping) or not batch_size:
        raise UsageError(
            f"batch_size is {batch_size!r}, but must map lengths to sizes", hint='{"<=30": 100, "<=128": 30}'
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
    for number in reversed(range(len(taken))):
        back = min(count, taken[number])
        taken[number] -= back
        count -= back
