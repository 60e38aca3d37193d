"""Checkpoints of the coordinator: it downloads the agreed state from a peer in the background, verifies and stores it."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.core.swarm import CoordinatorSettings
from shoal.swarm import states as state_folders
from shoal.swarm.agreement import Agreed, agreed
from shoal.swarm.averaging.wire import State
from shoal.swarm.monitor import typical_loss
from shoal.swarm.outer import MODEL, fingerprint_of
from shoal.swarm.records import Progress
from shoal.swarm.sources import request_state

logger = logging.getLogger(__name__)

_RETRY_S = 10.0


class Archive:
    """Folder of a swarm's checkpoints."""

    def __init__(self, settings: CoordinatorSettings, dht: Any):
        self._settings, self._dht = settings, dht
        self._folder = Path(settings.folder)
        self._newest = _round_of(Path(settings.snapshot)) if settings.snapshot else None
        self._kept_at = time.monotonic()
        self._tried_at = float("-inf")
        self._wanted = False
        self._asked: tuple[Agreed, float | None, Any] | None = None

    def want(self) -> None:
        """Request a checkpoint of the current state as soon as possible."""
        self._wanted = True
        self._tried_at = float("-inf")

    def advance(self, records: Mapping[str, Progress]) -> list[dict[str, Any]]:
        """Start a download if a checkpoint is due, or finish a running one; return events of new checkpoints."""
        if self._asked is not None:
            return self._end() if self._asked[2].done() else []
        goal = agreed(records.values())
        if goal is not None and self._is_due(goal):
            self._tried_at = time.monotonic()
            self._asked = (
                goal,
                typical_loss(records.values()),
                request_state(self._dht, self._settings.ticket.run_id, goal),
            )
        return []

    def _is_due(self, goal: Agreed) -> bool:
        now, round_ = time.monotonic(), goal.place.round
        if now - self._tried_at < _RETRY_S or round_ == self._newest or not round_:
            return False
        if self._wanted or self._newest is None or round_ < self._newest:
            return True
        return round_ - self._newest >= self._settings.every_rounds or now - self._kept_at >= self._settings.every_s

    def _end(self) -> list[dict[str, Any]]:
        assert self._asked is not None  # noqa: S101
        (goal, loss, asked), self._asked = self._asked, None
        try:
            state: State | None = asked.result(timeout=0)
            if state is None:
                logger.warning("no peer sent the state of round %d", goal.place.round)
                return []
            folder = self._folder / f"round-{goal.place.round:012}"
            path = state_folders.write(folder, state, loss=loss, fingerprint=_fingerprint(state))
        except Exception as error:
            # Network, other process or disk: training continues, and the checkpoint is tried again.
            logger.warning("round %d could not be saved: %s: %s", goal.place.round, type(error).__name__, error)
            return []
        self._newest, self._kept_at, self._wanted = goal.place.round, time.monotonic(), False
        self._drop_old()
        return [{"event": "checkpoint", "path": str(path), "round": goal.place.round, "hash": state.hash, "loss": loss}]

    def _drop_old(self) -> None:
        for old in sorted(self._folder.glob("round-*"), key=lambda path: path.stat().st_mtime)[: -self._settings.keep]:
            shutil.rmtree(old, ignore_errors=True)


def _fingerprint(state: State) -> str:
    model = [(n, t) for n, t in zip(state.names, state.tensors, strict=True) if n.startswith(MODEL)]
    return fingerprint_of((n.removeprefix(MODEL), t.shape) for n, t in model if t.dtype.is_floating_point)


def _round_of(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / "swarm.json").read_bytes())["round"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
