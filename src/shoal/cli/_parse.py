"""What people type, turned into values; whatever cannot be is a UsageError that says how it should look."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

from shoal.core.durations import parse_duration
from shoal.core.errors import UsageError

__all__ = ["DeviceName", "parse_duration", "parse_nodes", "parse_pairs", "parse_seconds", "parse_since"]

DeviceName = Literal["auto", "any", "cpu", "cuda", "rocm", "xpu"]
"""The same as `core.jobs.Device`, whose module takes too long to import for a command line."""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_since(text: str, now: datetime | None = None, *, option: str = "--since") -> datetime:
    """`5m` ago, or a moment like `2025-01-31T12:00:00` (local time unless it names a zone)."""
    if re.match(r"\d{4}-", text):
        try:
            return datetime.fromisoformat(text).astimezone(UTC)
        except ValueError:
            pass
    else:
        try:
            return (now or datetime.now(UTC)) - timedelta(seconds=parse_duration(text, option))
        except UsageError:
            pass
    raise UsageError(
        f"{option} {text!r} is neither a length of time nor a moment.",
        hint=f"Like this: {option} 5m, or {option} 2025-01-31T12:00:00Z",
    )


def parse_nodes(text: str) -> tuple[int, int]:
    """`4`, or `1:4` for as many as there are, between one and four."""
    low, colon, high = text.strip().partition(":")
    try:
        smallest = int(low)
        largest = int(high) if colon else smallest
    except ValueError:
        raise UsageError(
            f"--nodes {text!r} is not a number of nodes.", hint="Like this: --nodes 2, or --nodes 1:4"
        ) from None
    if smallest < 1:
        raise UsageError(f"--nodes {text!r}: a job needs at least one node.")
    if largest < smallest:
        raise UsageError(f"--nodes {text!r} has its largest before its smallest.", hint=f"--nodes {largest}:{smallest}")
    return smallest, largest


def parse_seconds(text: str | None, option: str) -> int | None:
    """A length of time in whole seconds, at least one; None for none given."""
    return max(1, round(parse_duration(text, option))) if text else None


def parse_pairs(items: Sequence[str] | None, option: str, shape: str) -> dict[str, str]:
    """`NAME=VALUE` options; the value may hold anything, '=' too."""
    pairs: dict[str, str] = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        # The value may be secret (people mistype), so only the name is ever repeated.
        if not equals:
            raise UsageError(f"{option} {name!r} has no '='.", hint=f"Like this: {option} {shape}")
        if not _ENV_NAME.fullmatch(name):
            raise UsageError(f"{option}: {name!r} is not an environment variable name.", hint=f"{option} {shape}")
        if name in pairs:
            raise UsageError(f"{option} {name} is given twice.")
        pairs[name] = value
    return pairs
