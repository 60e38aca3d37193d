"""Learning-rate schedule by global step, so that late and slow peers use the same rate as the others."""

from __future__ import annotations

import copy
from typing import Any


class Schedule:
    """Driver of a scheduler. From now on the script's own calls of `scheduler.step()` have no effect."""

    def __init__(self, scheduler: Any):
        self._scheduler, self._kind = scheduler, type(scheduler)
        self._at_first = copy.deepcopy(scheduler.state_dict())
        self._first = self._at = max(0, int(getattr(scheduler, "last_epoch", 0)))
        if (optimizer := getattr(scheduler, "optimizer", None)) is not None:
            optimizer._opt_called = True  # torch warns if no optimizer step came first; other peers have made it
        members = {"step": _nothing, "__module__": self._kind.__module__}
        scheduler.__class__ = type(self._kind.__name__, (self._kind,), members)

    def follow(self, step: int) -> None:
        """Advance to the given global step. Never goes back, because the count of the others' steps is an estimate."""
        for _ in range(step - self._at):
            self._kind.step(self._scheduler)
        self._at = max(self._at, step)

    def rewind(self, step: int) -> None:
        """Move to the given global step, back if necessary."""
        if step < self._at:
            self._scheduler.load_state_dict(copy.deepcopy(self._at_first))
            self._at = self._first
        self.follow(step)


def _nothing(*_: Any, **__: Any) -> None:
    return None
