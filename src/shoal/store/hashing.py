"""BLAKE3 names of chunks, and the bounds every chunk keeps to."""

from __future__ import annotations

import re

from blake3 import blake3

from shoal.core.errors import Corrupt, InvalidSpec

Data = bytes | bytearray | memoryview

MAX_CHUNK = 16 << 20
"""Plain bytes a chunk may hold: what one request or one thread must be able to keep in memory."""

_HASH = re.compile(r"[0-9a-f]{64}")


def chunk_hash(data: Data) -> str:
    return str(blake3(data).hexdigest())


def check_hash(value: str) -> str:
    """Hashes arrive from outside and become file names only through here."""
    if not _HASH.fullmatch(value):
        raise InvalidSpec(f"{value[:80]!r} is not a chunk hash.")
    return value


def verify(expected: str, data: Data) -> None:
    if chunk_hash(data) != expected:
        raise Corrupt(
            f"Chunk {expected[:12]}… is damaged: its bytes do not match its hash.", details={"hash": expected}
        )
