"""Ids: short, prefixed, sortable by time, and not guessable (80 random bits)."""

from __future__ import annotations

import os
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford: no i, l, o, u


def new_id(prefix: str) -> str:
    """Return a new id such as `job_01k9…`: 48 bits of milliseconds and 80 random bits."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    chars = []
    for _ in range(26):
        value, digit = divmod(value, 32)
        chars.append(_ALPHABET[digit])
    return f"{prefix}_{''.join(reversed(chars))}"


def is_id(text: str, prefix: str) -> bool:
    """Return whether a text has the form of an id with this prefix."""
    head, _, tail = text.partition("_")
    return head == prefix and len(tail) == 26 and all(c in _ALPHABET for c in tail)
