"""Base class of the record formats: cutting files into blocks, reading the records of a block, decoding them."""

from __future__ import annotations

import gzip
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, cast

import zstandard

from shoal.data.source import File, Source

SMALLEST_BLOCK, LARGEST_BLOCK = 64 << 10, 4 << 20
BLOCKS = 192
"""Number of blocks a dataset is cut into, if its files can be cut and the bounds on the block size allow it.

Four times the largest number of cursors. Blocks are mostly larger than chunks, so that readers of different blocks fetch
different bytes. It defines the order: changing it breaks saved states.
"""
_BLOCK = 128 << 10
COMPRESSIONS = {".gz": "gzip", ".tgz": "gzip", ".zst": "zstd", ".zstd": "zstd"}


class Block(NamedTuple):
    """Part of a file that is read in order: a range of bytes or of row groups."""

    path: str
    start: int
    end: int
    total: int | None = None
    """Number of records, if known without reading them."""


class Format(ABC):
    """A record format. An offset is a place in a file at which reading can start; None if the format has none."""

    @abstractmethod
    def cut(self, source: Source, files: list[File]) -> list[Block]:
        """Return the blocks in the order of the files, from sizes alone or from parts that are cheap to read."""

    @abstractmethod
    def records(self, source: Source, block: Block, offset: int | None = None) -> Iterator[tuple[int | None, Any]]:
        """Yield (offset, raw record) in order, from the start of the block or from an offset yielded before."""

    @abstractmethod
    def decode(self, source: Source, raw: Any) -> Any:
        """Return the record for the training script. Raise ValueError if it is malformed."""

    def warm(self, source: Source, block: Block) -> None:
        """Start to read a block that is needed soon. Does nothing by default."""
        return


def whole_files(files: Iterable[File]) -> list[Block]:
    """Return one block per file, for formats that can only be read from the start of a file."""
    return [Block(f.path, 0, f.size) for f in files if f.size]


def compression(path: str) -> str | None:
    return next((kind for suffix, kind in COMPRESSIONS.items() if path.lower().endswith(suffix)), None)


@contextmanager
def opened(source: Source, path: str) -> Iterator[BinaryIO]:
    """Open a file, decompressed according to its name. Raise ValueError if it is damaged."""
    with source.open(path) as file:
        kind = compression(path)
        try:
            if kind == "gzip":
                with gzip.GzipFile(fileobj=file) as unzipped:
                    yield cast(BinaryIO, unzipped)
            elif kind == "zstd":
                with io.BufferedReader(_Unpacked(file), _BLOCK) as plain:
                    yield cast(BinaryIO, plain)
            else:
                yield file
        except (EOFError, gzip.BadGzipFile, zstandard.ZstdError) as error:
            raise ValueError(f"cannot be decompressed: {error}") from error


class _Unpacked(io.RawIOBase):
    """Reader of consecutive zstd frames. Unlike the library's own reader, it detects a truncated file."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._frame: Any = None
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            rest = b"" if self._frame is None or not self._frame.eof else self._frame.unused_data
            packed = rest or self._file.read(_BLOCK)
            if not packed:
                if self._frame is not None and not self._frame.eof:
                    raise EOFError("it ends in the middle of a frame")
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._ready = memoryview(self._frame.decompress(packed))
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self._ready))
        view[:size], self._ready = self._ready[:size], self._ready[size:]
        return size
