"""Format of a pack, which holds many chunks in one blob: 5000 small files then cost a few writes and fsyncs, not 10000.

Format: magic, count, then per chunk (sorted by hash) hash, offset, length, codec; the BLAKE3 hash of all that; payloads in
the order of arrival, so that a file is read from few places, perhaps with gaps. A pack is named by the hash of its head, so
it never changes. All functions are pure and safe in any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from blake3 import blake3

from shoal.core.errors import Corrupt
from shoal.store.hashing import Data
from shoal.store.io.buffers import address

_MAGIC = b"shoalpk1"
_START = struct.Struct(">8sI")
_ENTRY = struct.Struct(">32sIIB")
_DIGEST = 32
_ALIGN_FROM = 128 << 10
"""Bytes from which a payload is aligned; smaller ones are not worth a gap."""


MOST_CHUNKS = 1024
"""Maximum chunks of a growing pack, for which room is reserved in its head."""
HEAD_ROOM = (_START.size + _ENTRY.size * MOST_CHUNKS + _DIGEST + 4095) // 4096 * 4096


class PackedChunk(NamedTuple):
    """Entry of a pack's head."""

    hash: str
    offset: int
    """Offset from the start of the pack."""
    length: int
    codec: int


def build_pack(chunks: Sequence[tuple[str, int, Data]], *, align: int = 1) -> tuple[str, list[PackedChunk], list[Data]]:
    """Return (name, entries, pieces to write) of a pack of (hash, codec, payload) chunks."""
    entries, body = lay_out(chunks, _START.size + _ENTRY.size * len(chunks) + _DIGEST, align=align)
    name, head = build_head(entries)
    return name, entries, [head, *body]


def lay_out(
    chunks: Sequence[tuple[str, int, Data]], offset: int, *, align: int
) -> tuple[list[PackedChunk], list[Data]]:
    """Return (entries, pieces to write) of chunks that start at `offset`.

    Gaps give large payloads the same offset modulo `align` in the pack as in memory, which direct I/O needs.
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
    """Return (name, head) of a pack with these entries."""
    head = _START.pack(_MAGIC, len(entries)) + b"".join(
        _ENTRY.pack(bytes.fromhex(e.hash), e.offset, e.length, e.codec) for e in sorted(entries, key=lambda e: e.hash)
    )
    digest = blake3(head).digest()
    return digest[:20].hex(), head + digest


def read_head(name: str, read: Callable[[int, int], bytes]) -> list[PackedChunk]:
    """Return a pack's entries through `read(offset, length)`; raise Corrupt if they do not match the pack's name."""
    start = read(0, _START.size)
    if len(start) != _START.size or (head := _START.unpack(start))[0] != _MAGIC:
        raise Corrupt(f"Pack {name} is damaged: it does not start with a pack header.")
    length = _ENTRY.size * head[1]
    body = read(_START.size, length)
    if len(body) != length or blake3(start + body).hexdigest()[: len(name)] != name:
        raise Corrupt(f"Pack {name} is damaged: its list of chunks does not match its name.")
    return [PackedChunk(digest.hex(), offset, size, codec) for digest, offset, size, codec in _ENTRY.iter_unpack(body)]
