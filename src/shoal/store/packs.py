"""Packs: chunks that were put together, in one blob: five thousand small files cost a few writes and fsyncs, not ten thousand.

Format: magic, count, then per chunk (sorted by hash) hash, offset, length, codec; BLAKE3 of all that; payloads, in the order they
came in, so that a file is read from few places; there may be gaps. The name of a pack is the hash of its head, so a pack never changes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from blake3 import blake3

from shoal.core.errors import Corrupt
from shoal.store.buffers import address
from shoal.store.hashing import Data

_MAGIC = b"shoalpk1"
_START = struct.Struct(">8sI")
_ENTRY = struct.Struct(">32sIIB")
_DIGEST = 32
_ALIGN_FROM = 128 << 10
"""Smaller ones are not worth a gap."""


MOST_CHUNKS = 1024
"""In a pack that grows: before it is known how many there will be."""
HEAD_ROOM = (_START.size + _ENTRY.size * MOST_CHUNKS + _DIGEST + 4095) // 4096 * 4096


class PackedChunk(NamedTuple):
    hash: str
    offset: int
    """From the start of the pack."""
    length: int
    codec: int


def build_pack(chunks: Sequence[tuple[str, int, Data]], *, align: int = 1) -> tuple[str, list[PackedChunk], list[Data]]:
    """(name, entries, pieces to write) of a pack of (hash, codec, payload)."""
    entries, body = lay_out(chunks, _START.size + _ENTRY.size * len(chunks) + _DIGEST, align=align)
    name, head = build_head(entries)
    return name, entries, [head, *body]


def lay_out(
    chunks: Sequence[tuple[str, int, Data]], offset: int, *, align: int
) -> tuple[list[PackedChunk], list[Data]]:
    """(entries, pieces to write) of chunks from `offset` on.

    Large payloads lie as far from a multiple of `align` in the pack as they do in memory.
    """
    entries = []
    body: list[Data] = []
    for name, codec, payload in chunks:
        here = address(payload) if align > 1 and len(payload) >= _ALIGN_FROM else None
        if here is not None and (gap := (here - offset) % align):
            body.append(bytes(gap))
            offset += gap
        body.append(payload)
        entries.append(PackedChunk(name, offset, len(payload), codec))
        offset += len(payload)
    return entries, body


def build_head(entries: Sequence[PackedChunk]) -> tuple[str, bytes]:
    """(name, head) of a pack of these."""
    head = _START.pack(_MAGIC, len(entries)) + b"".join(
        _ENTRY.pack(bytes.fromhex(e.hash), e.offset, e.length, e.codec) for e in sorted(entries, key=lambda e: e.hash)
    )
    digest = blake3(head).digest()
    return digest[:20].hex(), head + digest


def read_head(name: str, read: Callable[[int, int], bytes]) -> list[PackedChunk]:
    """The entries of a pack, through `read(offset, length)`. Corrupt unless they are what its name says."""
    start = read(0, _START.size)
    if len(start) != _START.size or (head := _START.unpack(start))[0] != _MAGIC:
        raise Corrupt(f"Pack {name} is damaged: it does not begin as a pack does.")
    length = _ENTRY.size * head[1]
    body = read(_START.size, length)
    if len(body) != length or blake3(start + body).hexdigest()[: len(name)] != name:
        raise Corrupt(f"Pack {name} is damaged: its list of chunks does not match its name.")
    return [PackedChunk(digest.hex(), offset, size, codec) for digest, offset, size, codec in _ENTRY.iter_unpack(body)]
