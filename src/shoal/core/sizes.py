"""Amounts of memory and disk space as people type them, and as they are shown to people."""

from __future__ import annotations

import re

from shoal.core.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(k|m|g|t)(i?)b?", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_LEAST, _MOST = 10**6, 10**15


def parse_size(text: str, option: str) -> int:
    """Return the bytes of a size typed by a person: `512M`, `16G`, `1.5TB` (powers of 1000), or `16GiB` (of 1024)."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise UsageError(f"{option} {text!r} is not a size.", hint=f"Like this: {option} 512M, 16G or 1.5T")
    size = int(float(found[1]) * (1024 if found[3] else 1000) ** _POWERS[found[2].lower()])
    if not _LEAST <= size <= _MOST:
        raise UsageError(f"{option} {text!r} must be from 1 MB to 1000 TB.")
    return size


def describe_size(count: int) -> str:
    """Return a number of bytes for people, with at most one decimal: '16.2 GB'."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f}".removesuffix(".0") + f" {unit}"
    return f"{count} B"
