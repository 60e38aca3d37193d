"""Writing and reading past the page cache: half the CPU time, and what a training on this machine reads stays in memory.

What is put is synced at once, so the cache would only hold a second copy of it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence

from shoal.store.buffers import Buffers, join_neighbours, private_memory
from shoal.store.hashing import Data

_BUFFER = 1 << 20
BLOCK = 4096
"""What memory and place in the file are aligned to."""
_AT_ONCE = 8 << 20
_STRAIGHT = 128 << 10
"""Pieces of memory from this size on are written from where they lie."""


class DirectWriter:
    """For several threads, each with a buffer of its own while it writes."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def write(self, fd: int, pieces: Sequence[Data], start: int = 0) -> bool:
        """Write the end of a file, from a multiple of BLOCK on. False, with nothing written, where the system knows no way."""
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        except (OSError, AttributeError):
            return False
        memory = self._free.pop() if self._free else private_memory(_BUFFER)
        try:
            blocks = _Blocks(fd, memoryview(memory), start)
            for address, piece in join_neighbours(pieces):
                blocks.add(piece, address)
            blocks.finish()
            return True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            os.ftruncate(fd, start)
            return False
        finally:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)
            self._free.append(memory)


class _Blocks:
    """Whole aligned blocks of a file, gathered to be written many at once.

    Most go through the buffer. What lies in memory just as it will in the file is written from there, but for its ends.
    """

    def __init__(self, fd: int, buffer: memoryview, start: int):
        self._fd, self._buffer = fd, buffer
        self._whole: list[memoryview] = []
        """Blocks to be written from `_at` on, of `_size` bytes together."""
        self._at, self._size = start, 0
        self._start = self._used = 0
        """What of the buffer is not among them yet."""

    def add(self, piece: memoryview, address: int | None) -> None:
        if address is not None and len(piece) >= _STRAIGHT:
            here = self._at + self._size + self._used - self._start
            lead = -here % BLOCK
            if (here - address) % BLOCK == 0:
                self._copy(piece[:lead])
                end = len(piece) - (len(piece) - lead) % BLOCK
                self._close()
                self._take(piece[lead:end])
                piece = piece[end:]
        self._copy(piece)

    def finish(self) -> None:
        """Fill the last block, and cut off again what is too much."""
        end = self._at + self._size + self._used - self._start
        self._used += -self._used % BLOCK
        self._close()
        self._write()
        os.ftruncate(self._fd, end)

    def _copy(self, piece: memoryview) -> None:
        while piece:
            part = piece[: len(self._buffer) - self._used]
            self._buffer[self._used : self._used + len(part)] = part
            self._used, piece = self._used + len(part), piece[len(part) :]
            if self._used == len(self._buffer):
                self._close()
                self._write()

    def _close(self) -> None:
        self._take(self._buffer[self._start : self._used])
        self._start = self._used

    def _take(self, blocks: memoryview) -> None:
        self._whole.append(blocks)
        self._size += len(blocks)
        if self._size >= _AT_ONCE:
            self._write()

    def _write(self) -> None:
        _write_blocks(self._fd, self._whole, self._at)
        self._at, self._size = self._at + self._size, 0
        self._whole.clear()
        if self._start == self._used:
            self._start = self._used = 0


def read_once(fd: int, length: int, start: int, buffers: Buffers) -> memoryview:
    """Up to `length` bytes at `start`: from the page cache if they seem to be in it, else past it. Fewer where the file ends."""
    skipped = start % BLOCK
    view = buffers.lend(skipped + length + -(skipped + length) % BLOCK)
    read = _read_all if _is_cached(fd, view[:BLOCK], start - skipped) else _read_blocks
    have = read(fd, view, start - skipped)
    return view[skipped : max(skipped, min(have, skipped + length))]


def _is_cached(fd: int, block: memoryview, at: int) -> bool:
    # One block tells enough. Asked for all of them, the kernel would begin to read into its cache what it lacks.
    try:
        return os.preadv(fd, [block], at, os.RWF_NOWAIT) > 0
    except (OSError, AttributeError):  # EAGAIN: not in memory; or this system cannot tell
        return False


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
        if done % BLOCK:  # only where the file ends
            break
    return have


def _write_blocks(fd: int, views: Sequence[memoryview], at: int) -> None:
    left = [view for view in views if view]
    while left:
        done = os.pwritev(fd, left, at)
        if done % BLOCK:
            raise OSError(errno.ENOSPC, "the disk took only part of a block")
        at += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if done:
            left[0] = left[0][done:]
