"""Batches: the one loop that groups items so that each group is small enough to be sent, stored or fetched at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def in_batches(items: Iterable[tuple[Item, int]], *, max_bytes: int, max_count: int) -> Iterator[list[Item]]:
    """Yield the items in lists of at most `max_count` items and `max_bytes`, in order; a larger item is alone in its list.

    Args:
        items: Pairs of an item and its size in bytes.
        max_bytes: Largest sum of sizes in a list.
        max_count: Largest number of items in a list.
    """
    batch: list[Item] = []
    total = 0
    for item, size in items:
        if batch and (total + size > max_bytes or len(batch) >= max_count):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch
