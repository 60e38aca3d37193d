"""The keeper's checkpoints: the state the swarm agrees on, downloaded from a peer beside everything else, proven, kept."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.core.swarm import KeeperOrder
from shoal.swarm import snapshots
from shoal.swarm.agreement import Agreed, agreed
from shoal.swarm.monitor import typical_loss
from shoal.swarm.outer import MODEL, fingerprint_of
from shoal.swarm.records import Progress
from shoal.swarm.sources import ask_peers
from shoal.swarm.wire import State

logger = logging.getLogger(__name__)

_RETRY_S = 10.0


class Archive:
    def __init__(self, order: KeeperOrder, dht: Any):
        self._order, self._dht = order, dht
        self._folder = Path(order.folder)
        self._newest = _round_of(Path(order.snapshot)) if order.snapshot else None
        self._kept_at = time.monotonic()
        self._tried_at = float("-inf")
        self._wanted = False
        self._asked: tuple[Agreed, float | None, Any] | None = None

    def want(self) -> None:
        """A checkpoint of the present state, as soon as can be."""
        self._wanted = True
        self._tried_at = float("-inf")

    def advance(self, records: Mapping[str, Progress]) -> list[dict[str, Any]]:
        """Begin, look after, or end a download; events of checkpoints that are there."""
        if self._asked is not None:
            return self._end() if self._asked[2].done() else []
        goal = agreed(records.values())
        if goal is not None and self._is_due(goal):
            self._tried_at = time.monotonic()
            self._asked = (goal, typical_loss(records.values()), ask_peers(self._dht, self._order.ticket.run_id, goal))
        return []

    def _is_due(self, goal: Agreed) -> bool:
        now, round_ = time.monotonic(), goal.place.round
        if now - self._tried_at < _RETRY_S or round_ == self._newest or not round_:
            return False
        if self._wanted or self._newest is None or round_ < self._newest:
            return True
        return round_ - self._newest >= self._order.every_rounds or now - self._kept_at >= self._order.every_s

    def _end(self) -> list[dict[str, Any]]:
        assert self._asked is not None  # noqa: S101
        (goal, loss, asked), self._asked = self._asked, None
        try:
            state: State | None = asked.result(timeout=0)
            if state is None:
                logger.warning("nobody gave the state of round %d", goal.place.round)
                return []
            folder = self._folder / f"round-{goal.place.round:012}"
            path = snapshots.write(folder, state, loss=loss, fingerprint=_fingerprint(state))
        except Exception as error:
            # Of the network, of another process or of the disk: the swarm goes on, and it is tried again.
            logger.warning("round %d could not be kept: %s: %s", goal.place.round, type(error).__name__, error)
            return []
        self._newest, self._kept_at, self._wanted = goal.place.round, time.monotonic(), False
        self._drop_old()
        return [{"event": "checkpoint", "path": str(path), "round": goal.place.round, "hash": state.hash, "loss": loss}]

    def _drop_old(self) -> None:
        for old in sorted(self._folder.glob("round-*"), key=lambda path: path.stat().st_mtime)[: -self._order.keep]:
            shutil.rmtree(old, ignore_errors=True)


def _fingerprint(state: State) -> str:
    model = [(n, t) for n, t in zip(state.names, state.tensors, strict=True) if n.startswith(MODEL)]
    return fingerprint_of((n.removeprefix(MODEL), t.shape) for n, t in model if t.dtype.is_floating_point)


def _round_of(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / "swarm.json").read_bytes())["round"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
