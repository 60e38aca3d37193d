"""BLAKE3 names of chunks, and the maximum size of a chunk."""

from __future__ import annotations

import re

from blake3 import blake3

from shoal.core.errors import Corrupt, InvalidSpec

Data = bytes | bytearray | memoryview

MAX_CHUNK = 16 << 20
"""Maximum plain bytes of a chunk: one request or thread must be able to keep it in memory."""

_HASH = re.compile(r"[0-9a-f]{64}")


def chunk_hash(data: Data) -> str:
    return str(blake3(data).hexdigest())


def check_hash(value: str) -> str:
    """Return a well-formed chunk hash, else raise InvalidSpec. Hashes from outside pass here before they name files."""
    if not _HASH.fullmatch(value):
        raise InvalidSpec(f"{value[:80]!r} is not a chunk hash.")
    return value


def verify(expected: str, data: Data) -> None:
    """Raise Corrupt if the data does not have the expected hash."""
    if chunk_hash(data) != expected:
        raise Corrupt(
            f"Chunk {expected[:12]}… is damaged: its bytes do not match its hash.", details={"hash": expected}
        )
