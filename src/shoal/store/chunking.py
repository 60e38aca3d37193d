"""Where files are cut: content-defined, so that an insertion moves only the chunks it touches.

The parameters are part of every manifest's meaning: changing one costs all deduplication against what is already stored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from pyfastcdc import FastCDC

WHOLE_FILE: Final = 1 << 20
"""Files up to this many bytes are one chunk: code and most samples."""
_AVERAGE: Final = 1 << 20
_MIN: Final = 1 << 18
_MAX: Final = 4 << 20
_WINDOW: Final = 16 << 20
"""Bytes read at once; a window and its successor are all a file costs in memory."""


def read_chunks(fd: int, size: int) -> Iterator[memoryview]:
    """The file's chunks in order, up to `size` bytes. Each may be kept for as long as it is needed."""
    if size <= WHOLE_FILE:
        if data := _read(fd, size, 0):
            yield memoryview(data)
        return
    cutter = FastCDC(_AVERAGE, min_size=_MIN, max_size=_MAX, normalized_chunking=2)
    at, rest = 0, memoryview(b"")
    while True:
        window, at = _window(fd, at, size, rest)
        last = at >= size or len(window) < _WINDOW
        start = 0
        for chunk in cutter.cut_buf(window):
            # A cut near the window's end might move with what follows it: it is made again in the next window.
            if not last and len(window) - start < _MAX:
                break
            yield window[start : start + chunk.length]
            start += chunk.length
        if last:
            return
        rest = window[start:]


def _window(fd: int, at: int, size: int, rest: memoryview) -> tuple[memoryview, int]:
    """`rest` and what follows it in the file, from one fresh buffer; and where the file goes on."""
    want = min(_WINDOW - len(rest), size - at)
    buffer = bytearray(len(rest) + want)
    buffer[: len(rest)] = rest
    view = memoryview(buffer)
    have = len(rest)
    while have < len(buffer) and (n := os.preadv(fd, [view[have:]], at)):
        have += n
        at += n
    return view[:have], at


def _read(fd: int, size: int, at: int) -> bytes:
    data = os.pread(fd, size, at)
    while len(data) < size and (more := os.pread(fd, size - len(data), at + len(data))):
        data += more
    return data
