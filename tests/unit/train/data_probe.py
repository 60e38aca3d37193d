"""Looks into training data as a set of ranks sees it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

Make = Callable[..., Any]
"""Makes training data, given rank, world and more keywords."""


def as_list(samples: list[Any]) -> list[Any]:
    """A collate function that leaves samples as they are."""
    return samples


class Ranks:
    """All ranks of one world, in step."""

    def __init__(self, make: Make, world: int, **options: Any):
        self.datas = [make(rank=rank, world=world, collate=as_list, **options) for rank in range(world)]
        self._iters: list[Any] = []

    def load(self, state: Any) -> Ranks:
        for data in self.datas:
            data.load_state_dict(state)
        return self

    def batches(self, count: int | None = None) -> list[tuple[int, list[list[Any]]]]:
        """(epoch, what each rank got) of the next `count` global batches, or all."""
        if not self._iters:
            self._iters = [iter(data) for data in self.datas]
        found = []
        for rows in islice(zip_same(self._iters), count):
            epochs = {epoch for epoch, _ in rows}
            assert len(epochs) == 1, "ranks are in the same epoch"
            found.append((epochs.pop(), [batch for _, batch in rows]))
        return found

    def state(self) -> Any:
        states = [data.state_dict() for data in self.datas]
        assert all(state == states[0] for state in states), "the state is the same on all ranks"
        return states[0]


def zip_same(iterators: list[Any]) -> Any:
    """Like zip, but all must end together."""
    over = object()
    while True:
        rows = [next(it, over) for it in iterators]
        if rows[0] is over:
            assert all(row is over for row in rows), "a rank got fewer batches than another"
            return
        assert over not in rows, "a rank got fewer batches than another"
        yield rows


def flat(batches: list[tuple[int, list[list[Any]]]]) -> list[Any]:
    return [sample for _, shares in batches for share in shares for sample in share]


def by_epoch(batches: list[tuple[int, list[list[Any]]]]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for epoch, shares in batches:
        found.setdefault(epoch, []).extend(sample for share in shares for sample in share)
    return found
