"""Values exchanged between ranks through the group's store. No rank is in a collective meanwhile, so none times out."""

# Why this is safe: all ranks make the same calls in the same order, so that the round number names the same call on each.
# Every key has one writer. A rank deletes its own key of two rounds before: a `gather` in between proves that all ranks
# have read it. `from_main` proves nothing about its readers: callers that use it several times in a row need a collective
# (a training step has one) or a `gather` in between. A rank that dies ends the others through the launcher; until then they
# wait in `_get`, in turns of _TURN_S.

from __future__ import annotations

import contextlib
import json
from datetime import timedelta
from typing import Any

from shoal.sdk.ranks.group import store

_TURN_S = 10.0


class RankStore:
    """Exchange of JSON values between ranks. Every rank makes the same calls in the same order, from one thread."""

    def __init__(self, rank: int, world_size: int, session: str):
        self._rank, self._world_size, self._session = rank, world_size, session
        self._round = 0
        self._store: Any = None if world_size == 1 else store()

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order. Waits for the slowest."""
        self._round += 1
        if self._store is None:
            return [value]
        self._put(value)
        return [value if rank == self._rank else self._get(rank) for rank in range(self._world_size)]

    def from_main(self, value: Any) -> Any:
        """Return the value of rank 0."""
        self._round += 1
        if self._store is None or self._rank == 0:
            self._put(value)
            return value
        return self._get(0)

    def _put(self, value: Any) -> None:
        if self._store is None:
            return
        self._store.set(self._key(self._round, self._rank), json.dumps(value))
        # All ranks have read the values of two rounds ago; see the top of the file.
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
