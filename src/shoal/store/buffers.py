"""Memory that is used again: in a virtual machine the first touch of a page costs more than reading and hashing it."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from contextlib import suppress


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


def private_memory(size: int) -> mmap.mmap:
    """Page-aligned, in huge pages where the system has them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
