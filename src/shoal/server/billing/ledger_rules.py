"""Rules that turn agents' reports into ledger entries. Pure functions, so that tests can try thousands of sequences.

A node's slots are charged from its agent's first report to its last reliable one. Work done while the server was down is
charged when the node reports again. If the end itself is reported only then, it happened at an unknown time, and is charged
up to the last report before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from blake3 import blake3

from shoal.core.money import HOUR_MS, cost_of

FIRST = "0" * 64
"""Previous hash of the first entry."""
HASHED = ("seq", "previous", "workspace_id", "job_id", "job", "person", "attempt_id", "attempt", "node", "machine", "kind",
          "slots", "start_ms", "end_ms", "slot_ms", "price", "currency", "cost")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interval:
    """Part of a node's time that is not in the ledger yet: from the end of the last entry to the last report."""

    start_ms: int | None = None
    heard_ms: int | None = None


Piece = tuple[int, int]


def after_report(open_: Interval, at_ms: int) -> Interval:
    """Return the interval after a report of the agent. Late and repeated reports change nothing."""
    if open_.start_ms is None or open_.heard_ms is None:
        return Interval(at_ms, at_ms)
    return replace(open_, heard_ms=max(open_.heard_ms, at_ms))


def hours(open_: Interval) -> tuple[Interval, list[Piece]]:
    """Split off complete hours as entries, so that long jobs appear in the ledger before they end."""
    if open_.start_ms is None or open_.heard_ms is None:
        return open_, []
    whole = (open_.heard_ms - open_.start_ms) // HOUR_MS
    split = open_.start_ms + whole * HOUR_MS
    return replace(open_, start_ms=split), list(_pieces(open_.start_ms, split))


def ended(open_: Interval, at_ms: int, timeout_ms: int) -> list[Piece]:
    """Return the entries of a node whose agent reported the end at `at_ms`.

    The end is trusted if the report before it is at most `timeout_ms` (the node timeout) old.
    """
    if open_.start_ms is None or open_.heard_ms is None:
        return []
    is_sure = at_ms - open_.heard_ms <= timeout_ms
    return list(_pieces(open_.start_ms, max(open_.heard_ms, at_ms) if is_sure else open_.heard_ms))


def lost(open_: Interval) -> list[Piece]:
    """Return the entries of a node that timed out: charged up to its last report."""
    if open_.start_ms is None or open_.heard_ms is None:
        return []
    return list(_pieces(open_.start_ms, open_.heard_ms))


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
    elif entry.slot_ms != entry.slots * (entry.end_ms - entry.start_ms) or entry.cost != cost_of(
        entry.slot_ms, entry.price
    ):
        yield "its sums are wrong"


def _pieces(start_ms: int, end_ms: int) -> Iterator[Piece]:
    while start_ms < end_ms:
        stop = min(end_ms, start_ms + HOUR_MS)
        yield start_ms, stop
        start_ms = stop
