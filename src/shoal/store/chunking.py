"""Where files are cut: content-defined, so that an insertion moves only the chunks it touches.

The parameters are part of every manifest's meaning: changing one costs all deduplication against what is already stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyfastcdc import FastCDC

from shoal.store.files import read_exact

WHOLE_FILE: Final = 1 << 20
"""Files up to this many bytes are one chunk: code and most samples."""
_MIN: Final = 256 << 10
"""Bytes skipped before a cut is looked for; the mean chunk is twice this. Small enough that a changed megabyte resends
little more, large enough that a terabyte is two million chunks; and skipping half of all bytes doubles the speed."""
_MAX: Final = 2 << 20
_WINDOW: Final = 8 << 20
"""Bytes read at once."""


def read_chunks(fd: int, size: int) -> Iterator[memoryview]:
    """The file's chunks in order, up to `size` bytes. Each may be kept for as long as it is needed."""
    if size <= WHOLE_FILE:
        if data := read_exact(fd, size, 0):
            yield memoryview(data)
        return
    cutter = FastCDC(_MIN, min_size=_MIN, max_size=_MAX, normalized_chunking=0)
    at = 0
    while at < size:
        window = memoryview(read_exact(fd, min(_WINDOW, size - at), at))
        last = at + len(window) >= size or not len(window)
        start = 0
        for chunk in cutter.cut_buf(window):
            # A cut near the window's end might move with what follows it: it is made again in the next window.
            if not last and len(window) - start < _MAX:
                break
            yield window[start : start + chunk.length]
            start += chunk.length
        if not start:
            return
        at += start
