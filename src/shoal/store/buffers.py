"""Memory that is used again: in a virtual machine the first touch of a page costs more than reading and hashing it."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress

from shoal.store.hashing import Data

_ANYWHERE = ctypes.c_char * (1 << 40)
"""Longer than any memory there is: a type for each length takes longer to make than its bytes take to be written."""


class Buffers:
    """Lends pieces of memory of up to `size` bytes. For several threads."""

    def __init__(self, size: int, *, keep: int = 64):
        """`keep`: how many that nobody uses are kept."""
        self._size, self._keep = size, keep
        self._free: list[mmap.mmap] = []

    def lend(self, length: int) -> memoryview:
        """Page-aligned and with anything in it; taken back when the last view of it is let go of."""
        if length > self._size:
            return memoryview(private_memory(length))[:length]
        try:
            memory = self._free.pop()
        except IndexError:
            memory = private_memory(self._size)
        lent = (ctypes.c_char * self._size).from_buffer(memory)
        weakref.finalize(lent, self._take_back, memory).atexit = False
        return memoryview(lent).cast("B")[:length]

    def _take_back(self, memory: mmap.mmap) -> None:
        if len(self._free) < self._keep:
            self._free.append(memory)


def address(data: Data) -> int | None:
    """Where these bytes lie; None for those that may not be written, which do not say."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(data))
    except (TypeError, ValueError):
        return None


def join_neighbours(pieces: Iterable[Data]) -> Iterator[tuple[int | None, memoryview]]:
    """The same bytes in as few pieces as they lie in memory, each with its address. The caller keeps the pieces meanwhile."""
    start: int | None = None
    size = 0
    for piece in pieces:
        here = address(piece)
        if start is not None and here == start + size:
            size += len(piece)
            continue
        if start is not None:
            yield start, _at(start, size)
        start, size = here, len(piece)
        if here is None:
            yield None, memoryview(piece).cast("B")
    if start is not None:
        yield start, _at(start, size)


def _at(start: int, size: int) -> memoryview:
    return memoryview(_ANYWHERE.from_address(start)).cast("B")[:size]


def private_memory(size: int) -> mmap.mmap:
    """Page-aligned, in huge pages where the system has them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
