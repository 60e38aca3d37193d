"""What the ranks have to tell each other about a save, through the group's store: no rank waits for another to train on.

Every rank leaves the state of its generators; rank 0's writer picks them up, and leaves word when the checkpoint is there.
"""

from __future__ import annotations

import io
import logging
import time
from datetime import timedelta
from importlib import import_module
from typing import Any

from shoal.core.errors import TimedOut
from shoal.sdk.group import store

torch: Any = import_module("torch")
dist: Any = import_module("torch.distributed")
logger = logging.getLogger(__name__)

_PATIENCE_S, _HEAR_S = 120.0, 3600.0


class Peers:
    """One per process and thread that uses it."""

    def __init__(self, rank: int, world_size: int, session: str):
        self._rank, self._world_size, self._session = rank, world_size, session
        self._store: Any = None
        self.is_hopeless = False
        """Set when the run has failed: nothing more is to be expected of the others."""

    def leave(self, number: str, state: Any) -> None:
        """This rank's part of save `number`."""
        if self._world_size == 1 or self._connected() is None:
            return
        packed = io.BytesIO()
        torch.save(state, packed)
        try:
            self._connected().set(self._key("rng", number, self._rank), packed.getvalue())
        except RuntimeError as error:  # the rank that holds the store is gone, and so is this attempt
            logger.debug("no store to leave the state of the generators in: %s", error)

    def gather(self, number: str, own: Any) -> list[Any]:
        """All ranks' parts, on rank 0; a peer that is dead leaves none, and the save fails."""
        if self._world_size == 1 or self._connected() is None:
            return [own]
        states = [own]
        for rank in range(1, self._world_size):
            key = self._key("rng", number, rank)
            self._await(key, _PATIENCE_S)
            states.append(torch.load(io.BytesIO(self._connected().get(key)), weights_only=True))
            self._connected().delete_key(key)
        return states

    def drop(self, number: str) -> None:
        """Rank 0: nobody is going to pick up what the ranks left for this save."""
        for rank in range(1, self._world_size):
            self._connected().delete_key(self._key("rng", number, rank))

    def tell(self, number: str, *, saved: bool) -> None:
        """Rank 0: the save is done, or is not going to be."""
        if self._world_size > 1 and self._connected() is not None:
            try:
                self._connected().set(self._key("done", number, 0), b"1" if saved else b"0")
            except RuntimeError as error:
                logger.debug("nobody to tell that the checkpoint is there: %s", error)

    def hear(self, number: str) -> bool:
        """Other ranks: whether it is there; waits."""
        key = self._key("done", number, 0)
        if self._connected() is None:
            return False
        self._await(key, _HEAR_S)
        return bool(self._connected().get(key) == b"1")

    def _await(self, key: str, patience_s: float) -> None:
        """In short turns: a run that ends because a peer is dead must not wait for it."""
        until = time.monotonic() + patience_s
        while not self._connected().check([key]):
            left = until - time.monotonic()
            if left <= 0 or self.is_hopeless:
                raise TimedOut("Another rank has not told the state of its generators; it may be dead.")
            try:
                self._connected().wait([key], timedelta(seconds=min(1.0, left)))
            except dist.DistStoreError:
                continue

    def _connected(self) -> Any:
        if self._store is None:
            self._store = store()
        return self._store

    def _key(self, kind: str, number: str, rank: int) -> str:
        return f"save/{self._session}/{kind}/{number}/{rank}"
