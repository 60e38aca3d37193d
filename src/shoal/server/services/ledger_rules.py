"""From words heard to entries of the ledger: pure, so that it can be tried in thousands of orders.

A node's slots are charged from its agent's first word to its last sure one. What was worked while the server was away is
charged once the node is heard of again; an end that is told only then lies somewhere in a time of which nothing is known,
and is charged up to the last word before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from blake3 import blake3

from shoal.core.money import HOUR_MS, cost_of

FIRST = "0" * 64
"""What stands for the hash before the first entry."""
HASHED = ("seq", "previous", "workspace_id", "job_id", "job", "person", "attempt_id", "attempt", "node", "machine", "kind",
          "slots", "start_ms", "end_ms", "slot_ms", "price", "currency", "cost")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interval:
    """A node's open interval. What of it was entered already ends where it starts."""

    start_ms: int | None = None
    heard_ms: int | None = None


Piece = tuple[int, int]


def heard(open_: Interval, at_ms: int) -> Interval:
    """A word of its agent's. Late and repeated ones change nothing."""
    if open_.start_ms is None or open_.heard_ms is None:
        return Interval(at_ms, at_ms)
    return replace(open_, heard_ms=max(open_.heard_ms, at_ms))


def hours(open_: Interval) -> tuple[Interval, list[Piece]]:
    """What of it is entered though it goes on: whole hours, so that long jobs show."""
    if open_.start_ms is None or open_.heard_ms is None:
        return open_, []
    whole = (open_.heard_ms - open_.start_ms) // HOUR_MS
    split = open_.start_ms + whole * HOUR_MS
    return replace(open_, start_ms=split), list(_pieces(open_.start_ms, split))


def ended(open_: Interval, at_ms: int, lease_ms: int) -> list[Piece]:
    """Its agent says that it is over."""
    if open_.start_ms is None or open_.heard_ms is None:
        return []
    is_sure = at_ms - open_.heard_ms <= lease_ms
    return list(_pieces(open_.start_ms, max(open_.heard_ms, at_ms) if is_sure else open_.heard_ms))


def lost(open_: Interval) -> list[Piece]:
    """Its lease is over, and nobody knows since when it was gone."""
    if open_.start_ms is None or open_.heard_ms is None:
        return []
    return list(_pieces(open_.start_ms, open_.heard_ms))


def entry_hash(entry: Any) -> str:
    """BLAKE3 of the entry's fields as a JSON list, in their order above, without spaces."""
    # A damaged row may hold anything, bytes too.
    text = json.dumps([getattr(entry, name) for name in HASHED], separators=(",", ":"), default=repr)
    return blake3(text.encode()).hexdigest()


def faults(entry: Any, seq: int, previous: str) -> Iterator[str]:
    """What is wrong with an entry that should be number `seq` and follow the hash `previous`."""
    if entry.seq != seq:
        yield f"it stands where entry {seq} should be"
    if entry.previous != previous:
        yield "it does not follow the entry before"
    if entry.hash != entry_hash(entry):
        yield "its contents do not match its hash"
    elif entry.slot_ms != entry.slots * (entry.end_ms - entry.start_ms) or entry.cost != cost_of(
        entry.slot_ms, entry.price
    ):
        yield "its sums are wrong"


def _pieces(start_ms: int, end_ms: int) -> Iterator[Piece]:
    while start_ms < end_ms:
        stop = min(end_ms, start_ms + HOUR_MS)
        yield start_ms, stop
        start_ms = stop
