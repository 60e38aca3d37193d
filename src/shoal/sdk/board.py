"""What the ranks tell each other through the group's store. Nobody is in a collective meanwhile, so nothing times out."""

from __future__ import annotations

import contextlib
import json
from datetime import timedelta
from typing import Any

from shoal.sdk.group import store

_TURN_S = 10.0


class Board:
    """Every rank makes the same calls in the same order; values are JSON. A rank that dies ends the others by its launcher."""

    def __init__(self, rank: int, world_size: int, session: str):
        self._rank, self._world_size, self._session = rank, world_size, session
        self._round = 0
        self._store: Any = None if world_size == 1 else store()

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order; takes as long as the slowest."""
        self._round += 1
        if self._store is None:
            return [value]
        self._put(value)
        return [value if rank == self._rank else self._get(rank) for rank in range(self._world_size)]

    def from_main(self, value: Any) -> Any:
        """Rank 0's value."""
        self._round += 1
        if self._store is None or self._rank == 0:
            self._put(value)
            return value
        return self._get(0)

    def _put(self, value: Any) -> None:
        if self._store is None:
            return
        self._store.set(self._key(self._round, self._rank), json.dumps(value))
        # Whoever is at this round has read all that was told two rounds ago.
        with contextlib.suppress(RuntimeError):
            self._store.delete_key(self._key(self._round - 2, self._rank))

    def _get(self, rank: int) -> Any:
        import torch.distributed as dist

        key = self._key(self._round, rank)
        while True:
            with contextlib.suppress(dist.DistStoreError):
                self._store.wait([key], timedelta(seconds=_TURN_S))
                return json.loads(self._store.get(key))

    def _key(self, number: int, rank: int) -> str:
        return f"board/{self._session}/{number}/{rank}"
