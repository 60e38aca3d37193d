"""Where files are cut: content-defined, so that an insertion moves only the chunks it touches; and at each tensor's ends.

The parameters are part of every manifest's meaning: changing one costs all deduplication against what is already stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyfastcdc import FastCDC

from shoal.store.buffers import Buffers
from shoal.store.files import read_exact, read_into
from shoal.store.formats import tensor_bounds

WHOLE_FILE: Final = 1 << 20
"""Files and tensors up to this many bytes are one chunk: code and most samples."""
_MIN: Final = 320 << 10
"""Bytes skipped before a cut is looked for. A third of all bytes is looked at; were a larger share skipped, chunks would find
back later to where they were before a change."""
_OFTEN: Final = 1
"""How easily a cut is found: after 128 KiB looked at on the average, so that the mean chunk has 440. Small enough that a changed
megabyte resends little more than another, large enough that a terabyte is two and a half million chunks."""
_MAX: Final = 2 << 20
_SMALL_TENSOR: Final = 256 << 10
"""Smaller ones are cut together with their neighbours."""
_WINDOW: Final = 4 << 20
"""Bytes read at once. The last chunk of a window is read again with the next."""


class Windows:
    """Where files are read into. A window is used again once the last chunk cut from it is let go of."""

    def __init__(self) -> None:
        self._buffers = Buffers(_WINDOW)

    def room(self) -> memoryview:
        """For several small files."""
        return self._buffers.lend(_WINDOW)

    def read(self, fd: int, length: int, at: int) -> memoryview:
        """Up to `length` bytes, at most a window; fewer only where the file ends."""
        view = self._buffers.lend(length)
        return view[: read_into(fd, view, at)]


def read_chunks(fd: int, size: int, name: str, windows: Windows) -> Iterator[memoryview]:
    """The file's chunks in order, up to `size` bytes. Each may be kept for as long as it is needed."""
    if size <= WHOLE_FILE:
        if data := read_exact(fd, size, 0):
            yield memoryview(data)
        return
    for start, end in _segments(tensor_bounds(fd, size, name), size):
        yield from _cut(fd, start, end, windows)


def _segments(bounds: list[int], size: int) -> Iterator[tuple[int, int]]:
    """Large tensors by themselves, what lies between them together."""
    group, at = 0, 0
    for bound in [*bounds, size]:
        if bound - at >= _SMALL_TENSOR:
            if at > group:
                yield group, at
            yield at, bound
            group = bound
        elif bound - group > WHOLE_FILE:
            yield group, at
            group = at
        at = bound
    if size > group:
        yield group, size


def _cut(fd: int, at: int, end: int, windows: Windows) -> Iterator[memoryview]:
    if end - at <= WHOLE_FILE:
        yield memoryview(read_exact(fd, end - at, at))
        return
    cutter = FastCDC(_MIN, min_size=_MIN, max_size=_MAX, normalized_chunking=_OFTEN)
    while at < end:
        window = windows.read(fd, min(_WINDOW, end - at), at)
        last = at + len(window) >= end
        start = 0
        for chunk in cutter.cut_buf(window):
            # A cut depends on nothing behind it; but where the window ends is no cut: the next window begins with that chunk.
            if not last and start + chunk.length == len(window):
                break
            yield window[start : start + chunk.length]
            start += chunk.length
        if not start:
            return
        at += start
