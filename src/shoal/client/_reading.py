"""One file of a stored tree as a seekable stream. Only the chunks that are read are downloaded."""

from __future__ import annotations

import bisect
import io
from collections import OrderedDict
from typing import TYPE_CHECKING

from shoal.core.artifacts import FileEntry

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from shoal.client._fetch import Source

AHEAD = 8
"""Chunks fetched together when a file is read sequentially."""
KEPT = 12
"""Chunks kept in memory."""


class StoredFile(io.RawIOBase):
    """Raw stream over the chunks of one file."""

    def __init__(self, file: FileEntry, source: Source):
        self._file, self._source, self._at = file, source, 0
        self._starts: list[int] = []
        offset = 0
        for chunk in file.chunks:
            self._starts.append(offset)
            offset += chunk.size
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._last = -2

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        if base + offset < 0:
            raise OSError("negative seek position")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        if self._at >= self._file.size or not view:
            return 0
        index = bisect.bisect_right(self._starts, self._at) - 1
        data = self._chunk(index)
        start = self._at - self._starts[index]
        part = data[start : start + len(view)]
        view[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _chunk(self, index: int) -> bytes:
        if index not in self._kept:
            count = AHEAD if index == self._last + 1 else 1
            wanted = [i for i in range(index, min(index + count, len(self._starts))) if i not in self._kept]
            names = list({self._file.chunks[i].hash for i in wanted})
            # Copy the bytes: the data may be a view that keeps a much larger block in memory.
            found = {name: bytes(data) for name, data in self._source.get_many(names)}
            self._kept |= {i: found[self._file.chunks[i].hash] for i in wanted}
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._last = index
        return self._kept[index]


def open_stored(file: FileEntry, source: Source) -> io.BufferedReader:
    return io.BufferedReader(StoredFile(file, source), buffer_size=64 << 10)
