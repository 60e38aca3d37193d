"""Format of many chunks in one HTTP body: per chunk 32 bytes hash, 1 byte codec, 4 bytes length (big-endian), payload.

Lengths are checked before memory is allocated. A body that ends inside a frame is an error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

from shoal.core.errors import Corrupt
from shoal.store.codec import PLAIN, decode, encode
from shoal.store.hashing import MAX_CHUNK, Data, check_hash, verify
from shoal.store.io.buffers import Buffers

CONTENT_TYPE = "application/vnd.shoal.chunks"

_HEADER = struct.Struct(">32sBI")
HEAD_BYTES = _HEADER.size
"""Bytes of a frame before its payload."""
_BLOCK = 1 << 20
WINDOW = 4 << 20
"""Preferred size of the buffers for `read_frames`."""


class Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


@runtime_checkable
class Fillable(Protocol):
    def readinto(self, buffer: memoryview, /) -> int: ...


def encode_frames(chunks: Iterable[tuple[str, Data]], *, compress: bool = True) -> Iterator[bytes]:
    """Yield the body in pieces of about a megabyte. Each chunk is compressed if that pays."""
    stored = ((name, *encode(data, compress=compress)) for name, data in _bounded(chunks))
    return map(b"".join, frame_groups(stored, _BLOCK))


def frame_pieces(chunks: Iterable[tuple[str, Data]]) -> Iterator[Data]:
    """Yield headers and payloads as separate pieces: `encode_frames` without copying, for vectored writes."""
    for name, data in _bounded(chunks):
        codec, payload = encode(data)
        yield _head(name, codec, payload)
        yield payload


def frame_groups(stored: Iterable[tuple[str, int, Data]], size: int) -> Iterator[list[Data]]:
    """Yield the body of (hash, codec, payload) chunks as groups of pieces, each group of at least `size` bytes."""
    parts: list[Data] = []
    have = 0
    for name, codec, payload in stored:
        parts += (_head(name, codec, payload), payload)
        have += HEAD_BYTES + len(payload)
        if have >= size:
            yield parts
            parts, have = [], 0
    if parts:
        yield parts


def decode_frames(body: Readable | Iterable[Data], *, check: bool = True) -> Iterator[tuple[str, bytes]]:
    """Yield (hash, plain bytes) of each frame of a body, given as a file or as pieces of any size.

    `check=False` leaves the comparison of hashes to the caller (a store's `put_many` does it anyway).
    """
    for name, codec, payload in view_frames(body):
        plain = decode(codec, payload)
        if check:
            verify(name, plain)
        yield name, plain


def view_frames(body: Readable | Iterable[Data]) -> Iterator[tuple[str, int, Data]]:
    """Yield (hash, codec, payload) of each frame, not decoded or verified, for a store's `put_stored`."""
    source = _Pieces(body)
    while head := source.read(HEAD_BYTES, first=True):
        digest, codec, length = _HEADER.unpack(head)
        if length > MAX_CHUNK:
            raise Corrupt(f"A frame claims {length} bytes; the limit is {MAX_CHUNK}.")
        yield digest.hex(), codec, source.read(length)


def read_frames(body: Fillable, buffers: Buffers) -> Iterator[tuple[str, Data]]:
    """Yield (hash, plain bytes) of each frame, read directly into reusable buffers. Chunks are views of these."""
    room, rest = buffers.lend(WINDOW), 0
    while head := _exactly(body, memoryview(bytearray(HEAD_BYTES)), may_end=True):
        digest, codec, length = _HEADER.unpack(head)
        if length > MAX_CHUNK:
            raise Corrupt(f"A frame claims {length} bytes; the limit is {MAX_CHUNK}.")
        if length > WINDOW - rest:
            room, rest = buffers.lend(max(length, WINDOW)), 0
        payload = _exactly(body, room[rest : rest + length])
        rest += length
        plain = payload if codec == PLAIN else decode(codec, payload)
        verify(digest.hex(), plain)
        yield digest.hex(), plain


def _exactly(body: Fillable, view: memoryview, *, may_end: bool = False) -> memoryview:
    have = 0
    while have < len(view):
        if not (done := body.readinto(view[have:])):
            if may_end and not have:
                return view[:0]
            raise Corrupt("The body ends in the middle of a chunk: the upload was cut off.")
        have += done
    return view


def _bounded(chunks: Iterable[tuple[str, Data]]) -> Iterator[tuple[str, Data]]:
    for name, data in chunks:
        if len(data) > MAX_CHUNK:
            raise Corrupt(f"Chunk {name[:12]}… has {len(data)} bytes; the limit is {MAX_CHUNK}.")
        yield name, data


def _head(name: str, codec: int, payload: Data) -> bytes:
    return _HEADER.pack(bytes.fromhex(check_hash(name)), codec, len(payload))


class _Pieces:
    """Exact reads from a file or an iterator of byte strings, with one piece in memory at a time."""

    def __init__(self, body: Readable | Iterable[Data]):
        read = getattr(body, "read", None)
        self._pieces: Iterator[Data] = iter(lambda: read(_BLOCK), b"") if read else iter(body)  # type: ignore[arg-type]
        self._rest = memoryview(b"")

    def read(self, size: int, *, first: bool = False) -> memoryview:
        """Return exactly `size` bytes; none at the end of the body, which is allowed only with `first`."""
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
