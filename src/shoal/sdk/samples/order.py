"""Order of the samples in an epoch and their distribution to the ranks: pure arithmetic, the same on every machine.

The order is a permutation of range(size) that depends on (seed, epoch) only. It is computed, not stored: any part of it is
available at once, for ten samples as for a billion. Batches of a fixed *global* size are cut from it and dealt to the ranks,
so world size and workers decide which rank reads a sample, never at which step.
"""

from __future__ import annotations

import hashlib
import math
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

_ROUNDS = 8
"""Rounds of the Feistel network. They and the constants below define the order: changing them breaks checkpoints."""
_MASK = 0xFFFFFFFF
_CHUNK = 8192
_LIBRARIES = ("numpy", "torch")
"""Libraries whose arrays make the computation fast; neither is required."""


def epoch_order(size: int, seed: int, epoch: int, *, shuffle: bool = True) -> Order:
    """Return the sample order of one epoch; slice it to get its parts."""
    return Order(size, seed, epoch, shuffle=shuffle)


class Order(Sequence[int]):
    """Permutation of range(size) by a Feistel network over two halves of sizes a and b with a·b ≥ size.

    Results outside range(size) are permuted again until they are inside (cycle walking).
    """

    def __init__(self, size: int, seed: int, epoch: int, *, shuffle: bool = True):
        self._size, self._shuffle = size, shuffle
        self._a = math.isqrt(max(0, size - 1)) + 1
        self._b = -(-size // self._a)
        digest = hashlib.blake2b(f"shoal order 1/{seed}/{epoch}".encode(), digest_size=4 * _ROUNDS).digest()
        self._keys = [int.from_bytes(digest[4 * i : 4 * i + 4], "little") for i in range(_ROUNDS)]
        self._cached: tuple[int, list[int]] = (-1, [])

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            start, stop, step = at.indices(self._size)
            if step != 1:
                return [self[i] for i in range(start, stop, step)]
            return self.part(start, stop)
        if not -self._size <= at < self._size:
            raise IndexError(at)
        return self.part(at % self._size, at % self._size + 1)[0]

    def part(self, start: int, stop: int) -> list[int]:
        """Return the samples at positions [start, stop)."""
        if not self._shuffle:
            return list(range(start, min(stop, self._size)))
        found: list[int] = []
        stop = min(stop, self._size)
        while start < stop:
            chunk = start // _CHUNK
            if self._cached[0] != chunk:
                self._cached = (chunk, self._compute(chunk * _CHUNK, min(self._size, (chunk + 1) * _CHUNK)))
            end = min(stop, (chunk + 1) * _CHUNK)
            found += self._cached[1][start - chunk * _CHUNK : end - chunk * _CHUNK]
            start = end
        return found

    def _compute(self, start: int, stop: int) -> list[int]:
        at = _positions(start, stop)
        if at is None:
            return [self._one(i) for i in range(start, stop)]
        found = self._permute(at)
        while (outside := found >= self._size).any():
            found[outside] = self._permute(found[outside])
        samples: list[int] = found.tolist()
        return samples

    def _one(self, at: int) -> int:
        found: int = self._permute(at)
        while found >= self._size:
            found = self._permute(found)
        return found

    def _permute(self, at: Any) -> Any:
        """Permute an int or an array of int64 once.

        Both give the same result: products beyond 64 bits keep their low bits, and only 32 of those are used.
        """
        a, b = self._a, self._b
        left, right = at // b, at % b
        for i in range(0, _ROUNDS, 2):
            left = (left + _mix(right ^ self._keys[i])) % a
            right = (right + _mix(left ^ self._keys[i + 1])) % b
        return left * b + right


class Micro(NamedTuple):
    """Micro-batch: the samples one rank gets in one iteration."""

    epoch: int
    batch: int
    part: int
    parts: int
    indices: list[int]
    used: int
    """Number of samples that count: len(indices), or 0 where a sample is repeated only to keep the ranks in step."""
    weight: float
    """Factor that makes the average over ranks and parts the mean over the samples of the global batch."""

    @property
    def is_first(self) -> bool:
        return self.part == 0

    @property
    def is_last(self) -> bool:
        return self.part == self.parts - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """Division of an epoch of `size` samples into global batches, and of those into the shares of the ranks."""

    size: int
    global_batch: int
    batch_size: int
    """Maximum number of samples a rank gets in one iteration."""
    world: int = 1
    drop_last: bool = False

    @property
    def batches(self) -> int:
        """Number of global batches per epoch."""
        return self.size // self.global_batch if self.drop_last else -(-self.size // self.global_batch)

    @property
    def iterations(self) -> int:
        """Number of iterations per epoch, the same on every rank."""
        if not self.batches:
            return 0
        return (self.batches - 1) * self.parts(0) + self.parts(self.batches - 1)

    def span(self, batch: int) -> tuple[int, int]:
        """Return the positions of a global batch in the epoch's order."""
        return batch * self.global_batch, min(self.size, (batch + 1) * self.global_batch)

    def parts(self, batch: int) -> int:
        """Return the number of iterations of a global batch."""
        start, stop = self.span(batch)
        largest_share = -((start - stop) // self.world)
        return -(-largest_share // self.batch_size)

    def share(self, batch: int, rank: int) -> tuple[int, int]:
        """Return the positions of one rank's share of a global batch."""
        start, stop = self.span(batch)
        first, end = cut(stop - start, self.world, rank)
        return start + first, start + end

    def micros(self, order: Order, epoch: int, batch: int, rank: int) -> Iterator[Micro]:
        """Yield one rank's micro-batches of a global batch."""
        start, stop = self.span(batch)
        total, parts = stop - start, self.parts(batch)
        low, high = self.share(batch, rank)
        mine = order.part(low, high)
        for part in range(parts):
            first, end = cut(len(mine), parts, part)
            count = end - first
            weight = 1.0 if count * self.world == total else count * self.world / total
            indices = mine[first:end] or order.part(start, start + 1)
            yield Micro(epoch, batch, part, parts, indices, count, weight)


def cut(total: int, pieces: int, piece: int) -> tuple[int, int]:
    """Return one of `pieces` contiguous ranges of range(total), as even as possible, the longer ones first."""
    each, more = divmod(total, pieces)
    first = piece * each + min(piece, more)
    return first, first + each + (piece < more)


def crc_of(indices: Sequence[int], crc: int = 0) -> int:
    """Return the crc32 of sample indices as little-endian 64-bit integers, continued from `crc`."""
    packed = array("q", indices)
    if sys.byteorder == "big":
        packed.byteswap()
    return zlib.crc32(packed.tobytes(), crc)


def _mix(x: Any) -> Any:
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def _positions(start: int, stop: int) -> Any:
    """Return range(start, stop) as an int64 array of an installed library; None if there is none."""
    for name in _LIBRARIES:
        try:
            library = import_module(name)
            return library.arange(start, stop, dtype=library.int64)
        except ImportError:
            continue
    return None
