"""Packs: chunks that were put together, in one blob: five thousand small files cost a few writes and fsyncs, not ten thousand.

Format: magic, count, then per chunk (sorted by hash) hash, offset, length, codec; BLAKE3 of all that; payloads, in the order they
came in, so that a file is read from few places. The name of a pack is the hash of its head, so a pack never changes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blake3 import blake3

from shoal.core.errors import Corrupt
from shoal.store.hashing import Data

_MAGIC = b"shoalpk1"
_START = struct.Struct(">8sI")
_ENTRY = struct.Struct(">32sIIB")
_DIGEST = 32


@dataclass(frozen=True, slots=True)
class PackedChunk:
    hash: str
    offset: int
    """From the start of the pack."""
    length: int
    codec: int


def build_pack(chunks: Sequence[tuple[str, int, Data]]) -> tuple[str, list[PackedChunk], list[Data]]:
    """(name, entries, pieces to write) of a pack of (hash, codec, payload)."""
    offset = _START.size + _ENTRY.size * len(chunks) + _DIGEST
    entries = []
    for name, codec, payload in chunks:
        entries.append(PackedChunk(name, offset, len(payload), codec))
        offset += len(payload)
    entries.sort(key=lambda e: e.hash)
    head = _START.pack(_MAGIC, len(entries)) + b"".join(
        _ENTRY.pack(bytes.fromhex(e.hash), e.offset, e.length, e.codec) for e in entries
    )
    digest = blake3(head).digest()
    return digest[:20].hex(), entries, [head + digest, *(payload for _, _, payload in chunks)]


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
