"""Batches of chunks in one HTTP body: per chunk 32 bytes hash, 1 byte codec, 4 bytes length (big-endian), payload.

Nothing is allocated before its length has been checked; a body that stops inside a frame is an error, not an end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Protocol

from shoal.core.errors import Corrupt
from shoal.store.codec import PLAIN, decode, encode
from shoal.store.hashing import MAX_CHUNK, Data, check_hash, verify

CONTENT_TYPE = "application/vnd.shoal.chunks"

_HEADER = struct.Struct(">32sBI")
_BLOCK = 1 << 20


class Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


def encode_frames(chunks: Iterable[tuple[str, Data]], *, compress: bool = True) -> Iterator[bytes]:
    """The body, in pieces of about a megabyte. Each chunk is compressed where that pays."""
    parts: list[Data] = []
    size = 0
    for name, data in chunks:
        if len(data) > MAX_CHUNK:
            raise Corrupt(f"Chunk {name[:12]}… has {len(data)} bytes; the limit is {MAX_CHUNK}.")
        codec, payload = encode(data, compress=compress)
        parts += (_HEADER.pack(bytes.fromhex(check_hash(name)), codec, len(payload)), payload)
        size += _HEADER.size + len(payload)
        if size >= _BLOCK:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def decode_frames(body: Readable | Iterable[bytes], *, check: bool = True) -> Iterator[tuple[str, bytes]]:
    """(hash, plain bytes) for each frame of a body given as a file or as pieces of any size.

    `check=False` leaves comparing hashes to the caller (a store's put compares anyway).
    """
    for name, codec, payload in _frames(body):
        plain = decode(codec, payload)
        if check:
            verify(name, plain)
        yield name, plain


def view_frames(body: Readable | Iterable[bytes]) -> Iterator[tuple[str, Data]]:
    """`decode_frames(check=False)` without copying: plain chunks are views of the body, for a store's put."""
    for name, codec, payload in _frames(body):
        yield name, payload if codec == PLAIN else decode(codec, payload)


def _frames(body: Readable | Iterable[bytes]) -> Iterator[tuple[str, int, memoryview]]:
    source = _Pieces(body)
    while head := source.read(_HEADER.size, first=True):
        digest, codec, length = _HEADER.unpack(head)
        if length > MAX_CHUNK:
            raise Corrupt(f"A frame claims {length} bytes; the limit is {MAX_CHUNK}.")
        yield digest.hex(), codec, source.read(length)


class _Pieces:
    """Exact reads from a file or from an iterator of byte strings, holding one piece at a time."""

    def __init__(self, body: Readable | Iterable[bytes]):
        read = getattr(body, "read", None)
        self._pieces: Iterator[bytes] = iter(lambda: read(_BLOCK), b"") if read else iter(body)  # type: ignore[arg-type]
        self._rest = memoryview(b"")

    def read(self, size: int, *, first: bool = False) -> memoryview:
        """Exactly `size` bytes; nothing at all only where `first` allows the body to end."""
        if size <= len(self._rest):
            out, self._rest = self._rest[:size], self._rest[size:]
            return out
        parts, have = [self._rest], len(self._rest)
        while have < size:
            piece = next(self._pieces, None)
            if piece is None:
                if first and have == 0:
                    return memoryview(b"")
                raise Corrupt("The body ends in the middle of a chunk: the upload was cut off.")
            parts.append(memoryview(piece))
            have += len(piece)
        keep = len(parts[-1]) - (have - size)
        parts[-1], self._rest = parts[-1][:keep], parts[-1][keep:]
        return memoryview(b"".join(parts))
