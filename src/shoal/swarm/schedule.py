"""Learning rate by global step: whoever joins late, or is slow, is at the same point of it as everybody else."""

from __future__ import annotations

import copy
from typing import Any


class Schedule:
    """Steps a scheduler itself; the script's own calls of scheduler.step do nothing from now on."""

    def __init__(self, scheduler: Any):
        self._scheduler, self._kind = scheduler, type(scheduler)
        self._at_first = copy.deepcopy(scheduler.state_dict())
        self._first = self._at = max(0, int(getattr(scheduler, "last_epoch", 0)))
        if (optimizer := getattr(scheduler, "optimizer", None)) is not None:
            optimizer._opt_called = True  # schedulers warn where no step was made before theirs; others have made it
        members = {"step": _nothing, "__module__": self._kind.__module__}
        scheduler.__class__ = type(self._kind.__name__, (self._kind,), members)

    def follow(self, step: int) -> None:
        """To where it stands after so many global steps; not back, for what is known of the others' steps is a guess."""
        for _ in range(step - self._at):
            self._kind.step(self._scheduler)
        self._at = max(self._at, step)

    def rewind(self, step: int) -> None:
        """The same, back too."""
        if step < self._at:
            self._scheduler.load_state_dict(copy.deepcopy(self._at_first))
            self._at = self._first
        self.follow(step)


def _nothing(*_: Any, **__: Any) -> None:
    return None
