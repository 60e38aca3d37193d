"""The order of samples in an epoch and who gets which: arithmetic only, the same on every machine.

The order is a permutation of range(size) that depends on (seed, epoch) alone. It is computed, not stored: any part of it can
be had at once, for a billion samples as for ten. Batches of a fixed *global* size are cut from it and dealt to the ranks, so
world size and workers decide who reads a sample, never when.
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
"""Part of the order's meaning, as are the constants below; changing them breaks checkpoints."""
_MASK = 0xFFFFFFFF
_CHUNK = 8192
_LIBRARIES = ("numpy", "torch")
"""Whose arrays compute it fast; neither is needed."""


def epoch_order(size: int, seed: int, epoch: int, *, shuffle: bool = True) -> Order:
    """The order of one epoch, to be sliced."""
    return Order(size, seed, epoch, shuffle=shuffle)


class Order(Sequence[int]):
    """A Feistel network over two halves of sizes a and b, a·b ≥ size; what falls outside the size is walked on (cycle walking)."""

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
        """The samples at positions [start, stop)."""
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
        """For an int or an array of int64 alike: products beyond 64 bits keep their low bits, and only 32 of those are used."""
        a, b = self._a, self._b
        left, right = at // b, at % b
        for i in range(0, _ROUNDS, 2):
            left = (left + _mix(right ^ self._keys[i])) % a
            right = (right + _mix(left ^ self._keys[i + 1])) % b
        return left * b + right


class Micro(NamedTuple):
    """What one rank is given in one iteration."""

    epoch: int
    batch: int
    part: int
    parts: int
    indices: list[int]
    used: int
    """Samples that count: len(indices), or 0 where a sample is repeated only to keep the ranks in step."""
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
    """How an epoch of `size` samples is cut into global batches and those into what each rank is given."""

    size: int
    global_batch: int
    batch_size: int
    """The most samples a rank is given at once."""
    world: int = 1
    drop_last: bool = False

    @property
    def batches(self) -> int:
        """Global batches per epoch."""
        return self.size // self.global_batch if self.drop_last else -(-self.size // self.global_batch)

    @property
    def iterations(self) -> int:
        """Iterations per epoch, the same on every rank."""
        if not self.batches:
            return 0
        return (self.batches - 1) * self.parts(0) + self.parts(self.batches - 1)

    def span(self, batch: int) -> tuple[int, int]:
        """Positions of a global batch in the epoch's order."""
        return batch * self.global_batch, min(self.size, (batch + 1) * self.global_batch)

    def parts(self, batch: int) -> int:
        """Into how many iterations a global batch is cut."""
        start, stop = self.span(batch)
        largest_share = -((start - stop) // self.world)
        return -(-largest_share // self.batch_size)

    def share(self, batch: int, rank: int) -> tuple[int, int]:
        """Positions of one rank's share of a global batch."""
        start, stop = self.span(batch)
        first, end = cut(stop - start, self.world, rank)
        return start + first, start + end

    def micros(self, order: Order, epoch: int, batch: int, rank: int) -> Iterator[Micro]:
        """One rank's iterations of a global batch."""
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
    """One of `pieces` contiguous ranges of range(total), as even as possible, the longer ones first."""
    each, more = divmod(total, pieces)
    first = piece * each + min(piece, more)
    return first, first + each + (piece < more)


def crc_of(indices: Sequence[int], crc: int = 0) -> int:
    """crc32 of sample indices as little-endian 64-bit integers, going on from `crc`."""
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
    """An array of int64 from whichever library is there; None if none is, and plain ints have to do."""
    for name in _LIBRARIES:
        try:
            library = import_module(name)
            return library.arange(start, stop, dtype=library.int64)
        except ImportError:
            continue
    return None
