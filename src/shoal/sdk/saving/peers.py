"""Messages between the ranks about a save, through the key-value store of the process group.

Every rank stores the state of its random generators; the writer of rank 0 collects them and stores the outcome when the
checkpoint is complete. Training threads do not wait for each other.
"""

# Why this is safe: every key has one writer and contains session, save and rank, so that no attempt or save sees the keys
# of another. Rank 0 deletes a rank's state once it has read it (or the save was skipped). If a rank dies before it has stored
# its state, `gather` times out in the writer's thread and this save fails; training and earlier checkpoints are not affected.

from __future__ import annotations

import io
import logging
import time
from datetime import timedelta
from importlib import import_module
from typing import Any

from shoal.core.errors import TimedOut
from shoal.sdk.ranks.group import store

torch: Any = import_module("torch")
dist: Any = import_module("torch.distributed")
logger = logging.getLogger(__name__)

_PATIENCE_S, _HEAR_S = 120.0, 3600.0


class Peers:
    """Store access of one thread: each thread that uses it needs its own instance."""

    def __init__(self, rank: int, world_size: int, session: str):
        self._rank, self._world_size, self._session = rank, world_size, session
        self._store: Any = None
        self.is_hopeless = False
        """True when the run has failed: no answer is expected from other ranks any more."""

    def store_state(self, number: str, state: Any) -> None:
        """Store this rank's state for save `number`."""
        if self._world_size == 1 or self._connected() is None:
            return
        packed = io.BytesIO()
        torch.save(state, packed)
        try:
            self._connected().set(self._key("rng", number, self._rank), packed.getvalue())
        except RuntimeError as error:  # the rank that holds the store is gone, and so is this attempt
            logger.debug("the state of the random generators could not be stored: %s", error)

    def gather(self, number: str, own: Any, patience_s: float = _PATIENCE_S) -> list[Any]:
        """Return the states of all ranks, on rank 0. Raise TimedOut if one is missing, such as that of a dead rank."""
        if self._world_size == 1 or self._connected() is None:
            return [own]
        states = [own]
        for rank in range(1, self._world_size):
            key = self._key("rng", number, rank)
            self._await(key, patience_s)
            states.append(torch.load(io.BytesIO(self._connected().get(key)), weights_only=True))
            self._connected().delete_key(key)
        return states

    def drop(self, number: str) -> None:
        """Delete, on rank 0, the states stored for a save that was skipped."""
        for rank in range(1, self._world_size):
            self._connected().delete_key(self._key("rng", number, rank))

    def store_outcome(self, number: str, *, saved: bool) -> None:
        """Store, on rank 0, whether the save succeeded."""
        if self._world_size > 1 and self._connected() is not None:
            try:
                self._connected().set(self._key("done", number, 0), b"1" if saved else b"0")
            except RuntimeError as error:
                logger.debug("the outcome of the save could not be stored: %s", error)

    def wait_for_outcome(self, number: str) -> bool:
        """Wait, on the other ranks, for the outcome of the save; return whether it succeeded."""
        key = self._key("done", number, 0)
        if self._connected() is None:
            return False
        self._await(key, _HEAR_S)
        return bool(self._connected().get(key) == b"1")

    def store_complete(self, number: str, text: str) -> None:
        """Store, on rank 0, that all parts of a sharded save are written; the leaders of other folders rename theirs."""
        if self._world_size > 1 and self._connected() is not None:
            self._connected().set(self._key("go", number, 0), text)

    def wait_until_complete(self, number: str, patience_s: float) -> bytes:
        """Wait, on a leader, for what rank 0 says."""
        key = self._key("go", number, 0)
        self._await(key, patience_s)
        return bytes(self._connected().get(key))

    def moved(self, number: str) -> None:
        """Store, on a leader, that its folder has its final name."""
        self._connected().set(self._key("moved", number, self._rank), b"1")

    def await_moved(self, number: str, leader: int, patience_s: float) -> None:
        """Wait, on rank 0, until that leader has renamed its folder."""
        key = self._key("moved", number, leader)
        self._await(key, patience_s)
        self._connected().delete_key(key)

    def _await(self, key: str, patience_s: float) -> None:
        """Wait for a key in turns of a second, so that a run that has failed meanwhile stops waiting."""
        until = time.monotonic() + patience_s
        while not self._connected().check([key]):
            left = until - time.monotonic()
            if left <= 0 or self.is_hopeless:
                raise TimedOut("Another rank did not answer while the checkpoint was saved; it may be dead.")
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
