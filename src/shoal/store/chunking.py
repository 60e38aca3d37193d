"""Cutting of files into chunks: content-defined, so that an insertion changes only nearby chunks, and at tensor boundaries.

Changing a parameter here ends all deduplication against chunks that are already stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyfastcdc import FastCDC

from shoal.store.files import read_exact, read_into
from shoal.store.formats import tensor_bounds
from shoal.store.io.buffers import Buffers

WHOLE_FILE: Final = 1 << 20
"""Files and tensors up to this many bytes are one chunk. Code and most samples are."""
_MIN: Final = 320 << 10
"""Bytes skipped before the search for a cut. A third of all bytes is searched; skipping more would delay the point where
chunks are equal again after a change."""
_OFTEN: Final = 1
"""Normalization level of FastCDC. A cut is found after 128 KiB of search on average, so the mean chunk has 440 KiB: small
enough that a changed megabyte resends little more than itself, large enough that a terabyte has 2.5 million chunks."""
_MAX: Final = 2 << 20
_SMALL_TENSOR: Final = 256 << 10
"""Tensors below this size are cut together with their neighbours."""
_WINDOW: Final = 4 << 20
"""Bytes read at once. The last chunk of a window is read again with the next window."""


class Windows:
    """Memory that files are read into. A window is reused when the last chunk cut from it is released."""

    def __init__(self) -> None:
        self._buffers = Buffers(_WINDOW)

    def room(self) -> memoryview:
        """Return an empty window, for several small files."""
        return self._buffers.lend(_WINDOW)

    def read(self, fd: int, length: int, at: int) -> memoryview:
        """Read up to `length` bytes, at most a window; fewer only at the end of the file."""
        view = self._buffers.lend(length)
        return view[: read_into(fd, view, at)]


def read_chunks(fd: int, size: int, name: str, windows: Windows) -> Iterator[memoryview]:
    """Yield the file's chunks in order, up to `size` bytes. The caller may keep them as long as it needs them."""
    if size <= WHOLE_FILE:
        if data := read_exact(fd, size, 0):
            yield memoryview(data)
        return
    for start, end in _segments(tensor_bounds(fd, size, name), size):
        yield from _cut(fd, start, end, windows)


def _segments(bounds: list[int], size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of segments to cut: one per large tensor, and one per group of bytes between them."""
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
            # A cut depends only on earlier bytes. The end of a window is not a cut: the next window starts with that chunk.
            if not last and start + chunk.length == len(window):
                break
            yield window[start : start + chunk.length]
            start += chunk.length
        if not start:
            return
        at += start
