"""Direct I/O, which bypasses the page cache: half the CPU time, and the data of running trainings stays cached.

Stored data is synced soon anyway, so the cache would only hold a second copy of it.

Why it is safe: a descriptor is used by one thread at a time (a GrowingPack has one owner, a read opens its own file), so
switching O_DIRECT on and off affects nobody else. Each write has a buffer of its own from `_free`, returned in `finally`;
`pop` and `append` of a list are atomic, and a thread that finds it empty makes a buffer. A file that is being written is
invisible until it is renamed, so a crash leaves only a temporary file.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence

from shoal.core.system import fcntl
from shoal.store.hashing import Data
from shoal.store.io.buffers import Buffers, join_adjacent, private_memory

_BUFFER = 1 << 20
BLOCK = 4096
"""Alignment in bytes of memory and file offsets."""
_AT_ONCE = 8 << 20
_STRAIGHT = 128 << 10
"""Bytes from which a piece of memory is written without copying it to the buffer."""


class DirectWriter:
    """Writer for several threads. Each uses a buffer of its own while it writes."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def write(self, fd: int, pieces: Sequence[Data], start: int = 0) -> bool:
        """Write pieces from `start`, a multiple of BLOCK, to the end of a file.

        Returns False, and leaves the file truncated to `start` or unchanged, if the system does not support direct I/O.
        """
        if fcntl is None:
            return False
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        except (OSError, AttributeError):
            return False
        try:
            memory = self._free.pop()
        except IndexError:
            memory = private_memory(_BUFFER)
        try:
            blocks = _Blocks(fd, memoryview(memory), start)
            for address, piece in join_adjacent(pieces):
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
    """Collector of aligned blocks, which are written many at once.

    Most bytes are copied to the buffer. Large pieces with the same alignment in memory as in the file are written directly,
    except for their unaligned ends.
    """

    def __init__(self, fd: int, buffer: memoryview, start: int):
        self._fd, self._buffer = fd, buffer
        self._whole: list[memoryview] = []
        """Blocks to be written at offset `_at`, of `_size` bytes together."""
        self._at, self._size = start, 0
        self._start = self._used = 0
        """Range of the buffer that is not in `_whole` yet."""

    def add(self, piece: memoryview, address: int | None) -> None:
        if address is not None and len(piece) >= _STRAIGHT:
            here = self._at + self._size + self._used - self._start
            lead = -here % BLOCK
            if (here - address) % BLOCK == 0:
                self._copy(piece[:lead])
                end = len(piece) - (len(piece) - lead) % BLOCK
                self._close()
                self._add(piece[lead:end])
                piece = piece[end:]
        self._copy(piece)

    def finish(self) -> None:
        """Write the last block padded, then truncate the file to its real length."""
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
        self._add(self._buffer[self._start : self._used])
        self._start = self._used

    def _add(self, blocks: memoryview) -> None:
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
    """Return up to `length` bytes from `start`, through the page cache only if they seem to be in it.

    Returns fewer bytes only at the end of the file.
    """
    skipped = start % BLOCK
    view = buffers.lend(skipped + length + -(skipped + length) % BLOCK)
    read = _read_all if _is_cached(fd, view[:BLOCK], start - skipped) else _read_blocks
    have = read(fd, view, start - skipped)
    return view[skipped : max(skipped, min(have, skipped + length))]


def _is_cached(fd: int, block: memoryview, at: int) -> bool:
    # One block is enough as a sample. A request for all of them would make the kernel read the missing ones into its cache.
    try:
        return os.preadv(fd, [block], at, os.RWF_NOWAIT) > 0
    except (OSError, AttributeError):  # EAGAIN: not cached; other errors: the system does not support the query
        return False


def _read_blocks(fd: int, view: memoryview, at: int) -> int:
    if fcntl is None:
        return _read_all(fd, view, at)
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
        if done % BLOCK:  # the end of the file
            break
    return have


def _write_blocks(fd: int, views: Sequence[memoryview], at: int) -> None:
    left = [view for view in views if view]
    while left:
        done = os.pwritev(fd, left, at)
        if done % BLOCK:
            raise OSError(errno.ENOSPC, "the disk accepted only a part of a block")
        at += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if done:
            left[0] = left[0][done:]
