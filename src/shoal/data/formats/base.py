"""What a record format is: how its files are cut into blocks, and how a block's records are read and decoded."""

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
"""Blocks a dataset is cut into where its files can be cut and neither bound is met: four rows, of blocks that are soon larger
than chunks, so that readers of different blocks fetch different bytes. Part of the order's meaning."""
_BLOCK = 128 << 10
COMPRESSIONS = {".gz": "gzip", ".tgz": "gzip", ".zst": "zstd", ".zstd": "zstd"}


class Block(NamedTuple):
    """A part of a file that is read in order: a range of bytes, or of row groups."""

    path: str
    start: int
    end: int
    total: int | None = None
    """Records in it, where that is known without reading them."""


class Format(ABC):
    """Offsets mark where reading can begin again; None where it cannot."""

    @abstractmethod
    def cut(self, source: Source, files: list[File]) -> list[Block]:
        """Blocks in the order of the files, by sizes alone or by what costs little to read."""

    @abstractmethod
    def records(self, source: Source, block: Block, offset: int | None = None) -> Iterator[tuple[int | None, Any]]:
        """(offset, raw record) in order, from the block's start or from an offset given before."""

    @abstractmethod
    def decode(self, source: Source, raw: Any) -> Any:
        """The record as a training script gets it. ValueError if it is malformed."""

    def warm(self, source: Source, block: Block) -> None:
        """The block will be read soon."""
        return


def whole_files(files: Iterable[File]) -> list[Block]:
    """For formats that can only be read from the start of a file."""
    return [Block(f.path, 0, f.size) for f in files if f.size]


def compression(path: str) -> str | None:
    return next((kind for suffix, kind in COMPRESSIONS.items() if path.lower().endswith(suffix)), None)


@contextmanager
def opened(source: Source, path: str) -> Iterator[BinaryIO]:
    """The file's content, unpacked where its name says that it is compressed. Damage is a ValueError."""
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
            raise ValueError(f"cannot be unpacked: {error}") from error


class _Unpacked(io.RawIOBase):
    """zstd frames, one after the other. The library's own reader takes a file that was cut off for one that ends."""

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
