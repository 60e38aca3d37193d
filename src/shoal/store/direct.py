"""Writing past the page cache: half the CPU time, and what a training on this machine reads stays in memory.

What is put is synced at once, so the cache would only hold a second copy of it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress

from shoal.store.hashing import Data

_BUFFER = 4 << 20
_BLOCK = 4096


class DirectWriter:
    """For several threads, each with a buffer of its own while it writes."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def write(self, fd: int, pieces: Sequence[Data]) -> bool:
        """False, with nothing written, where the file system does not know how."""
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        except (OSError, AttributeError):
            return False
        memory = self._free.pop() if self._free else private_memory(_BUFFER)
        try:
            return self._fill(fd, memoryview(memory), pieces)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)
            os.ftruncate(fd, 0)
            return False
        finally:
            self._free.append(memory)

    @staticmethod
    def _fill(fd: int, buffer: memoryview, pieces: Sequence[Data]) -> bool:
        """Whole aligned blocks through the buffer; what is too much of the last is cut off again."""
        at, used = 0, 0
        for piece in pieces:
            rest = memoryview(piece).cast("B")
            while rest:
                part = rest[: len(buffer) - used]
                buffer[used : used + len(part)] = part
                used, rest = used + len(part), rest[len(part) :]
                if used == len(buffer):
                    _write_blocks(fd, buffer, at)
                    at, used = at + used, 0
        _write_blocks(fd, buffer[: used + -used % _BLOCK], at)
        os.ftruncate(fd, at + used)
        return True


def private_memory(size: int) -> mmap.mmap:
    """Page-aligned, in huge pages where the system has them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _write_blocks(fd: int, view: memoryview, at: int) -> None:
    while view:
        done = os.pwrite(fd, view, at)
        if done % _BLOCK:
            raise OSError(errno.ENOSPC, "the disk took only part of a block")
        view, at = view[done:], at + done
