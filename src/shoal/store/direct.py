"""Writing and reading past the page cache: half the CPU time, and what a training on this machine reads stays in memory.

What is put is synced at once, so the cache would only hold a second copy of it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence

from shoal.store.buffers import Buffers, private_memory
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


def read_once(fd: int, length: int, start: int, buffers: Buffers) -> memoryview:
    """Up to `length` bytes at `start`: from the page cache as far as they are in it, else past it. Fewer where the file ends."""
    skipped = start % _BLOCK
    view = buffers.lend(skipped + length + -(skipped + length) % _BLOCK)
    have = _read_cached(fd, view, start - skipped)
    if have < skipped + length:
        have -= have % _BLOCK
        have += _read_blocks(fd, view[have:], start - skipped + have)
    return view[skipped : max(skipped, min(have, skipped + length))]


def _read_cached(fd: int, view: memoryview, at: int) -> int:
    have = 0
    try:
        while have < len(view) and (done := os.preadv(fd, [view[have:]], at + have, os.RWF_NOWAIT)):
            have += done
    except (OSError, AttributeError):  # EAGAIN: not in memory; or this system cannot tell
        pass
    return have


def _read_blocks(fd: int, view: memoryview, at: int) -> int:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        return _read_all(fd, view, at)
    except (OSError, AttributeError):
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        return _read_all(fd, view, at)


def _read_all(fd: int, view: memoryview, at: int) -> int:
    have = 0
    while have < len(view) and (done := os.preadv(fd, [view[have:]], at + have)):
        have += done
        if done % _BLOCK:  # only where the file ends
            break
    return have


def _write_blocks(fd: int, view: memoryview, at: int) -> None:
    while view:
        done = os.pwrite(fd, view, at)
        if done % _BLOCK:
            raise OSError(errno.ENOSPC, "the disk took only part of a block")
        view, at = view[done:], at + done
