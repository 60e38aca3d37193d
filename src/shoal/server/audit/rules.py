"""Rules of the audit log's chain of hashes. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from blake3 import blake3

FIRST = "0" * 64
"""Previous hash of the first entry."""
HASHED = ("seq", "previous", "at_ms", "actor", "key_id", "address", "request", "action", "object", "object_id", "workspace",
          "workspace_id", "result", "detail")  # fmt: skip


def entry_hash(entry: Any) -> str:
    """Return the BLAKE3 hash of the entry's fields as a JSON list without spaces, in the order of `HASHED`."""
    # A damaged row may hold values of any type, bytes too.
    text = json.dumps([getattr(entry, name) for name in HASHED], separators=(",", ":"), default=repr)
    return blake3(text.encode()).hexdigest()


def faults(entry: Any, seq: int, previous: str) -> Iterator[str]:
    """Yield the faults of an entry that should be number `seq` and follow the hash `previous`."""
    if entry.seq != seq:
        yield f"it stands where entry {seq} should be"
    if entry.previous != previous:
        yield "it does not follow the entry before"
    if entry.hash != entry_hash(entry):
        yield "its contents do not match its hash"
