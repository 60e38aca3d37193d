"""Reused memory. In a virtual machine the first access to a page costs more than reading and hashing its content.

Why it is safe: a piece of memory is either in `_free` or lent to exactly one caller. `list.pop` and `list.append` are atomic,
so two threads cannot get the same piece. It is returned by the finalizer of the ctypes array that all views are based on,
thus only when the last view, in any thread, is gone. Two returns at the same time may exceed `keep` by one, which is
harmless. The memory is private to the process: after a fork or a crash nothing is shared or left.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress

from shoal.store.hashing import Data

_ANYWHERE = ctypes.c_char * (1 << 40)
"""Array type longer than any memory. Creating a type for each length would take longer than writing its bytes."""


class Buffers:
    """Pool that lends pieces of memory of up to `size` bytes to several threads."""

    def __init__(self, size: int, *, keep: int = 64):
        """Create a pool that keeps up to `keep` unused pieces."""
        self._size, self._keep = size, keep
        self._free: list[mmap.mmap] = []

    def lend(self, length: int) -> memoryview:
        """Return page-aligned memory with arbitrary content. It returns to the pool when the last view of it is released."""
        if length > self._size:
            return memoryview(private_memory(length))[:length]
        try:
            memory = self._free.pop()
        except IndexError:
            memory = private_memory(self._size)
        lent = (ctypes.c_char * self._size).from_buffer(memory)
        weakref.finalize(lent, self._release, memory).atexit = False
        return memoryview(lent).cast("B")[:length]

    def _release(self, memory: mmap.mmap) -> None:
        if len(self._free) < self._keep:
            self._free.append(memory)


def address(data: Data) -> int | None:
    """Return the memory address of the bytes; None for read-only data, whose address Python does not expose."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(data))
    except (TypeError, ValueError):
        return None


def join_adjacent(pieces: Iterable[Data]) -> Iterator[tuple[int | None, memoryview]]:
    """Yield (address, view) with pieces that are adjacent in memory joined. The caller must keep the pieces alive."""
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
    """Return page-aligned memory, in huge pages if the system supports them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
