"""Loops over data end early, so that what follows them (an evaluation, a checkpoint) is reached within seconds.

Only where the loop is one that may end: a `for` over a loader. What is asked for with next() goes on as it would.
"""

from __future__ import annotations

import copy
import dis
import sys
import weakref
from types import FrameType
from typing import Any

from .trial import STEPS, Trial

_PATIENT = ("accelerate.", "shoal.sdk.", "ignite.", "lightning.", "pytorch_lightning.")
"""Packages that ask with next() and know the end when they see it."""
_MOST_UNUSED = 3
"""Batches that go through a model without a backward pass before it is held for an evaluation."""


def install(torch: Any, trial: Trial) -> None:
    loader = torch.utils.data.DataLoader
    original = loader.__iter__
    trained: weakref.WeakSet[Any] = weakref.WeakSet()
    """Loaders a training has gone through."""

    def __iter__(self: Any) -> Any:
        inner = original(self)
        return Pass(torch, trial, self, inner, trained) if trial.is_here else inner

    loader.__iter__ = __iter__


class Pass:
    """One pass over a loader."""

    def __init__(self, torch: Any, trial: Trial, loader: Any, inner: Any, trained: weakref.WeakSet[Any]):
        self._torch, self._trial, self._loader, self._inner, self._trained = torch, trial, loader, inner, trained
        self._begun = copy.copy(trial.seen)
        self._given = 0
        self._most_steps = STEPS if trial.seen.steps < STEPS else 1

    def __iter__(self) -> Pass:
        return self

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __next__(self) -> Any:
        trial = self._trial
        if not trial.is_here:
            return next(self._inner)
        may_end = _may_end(sys._getframe(1))
        if may_end:
            self._note()
            if not self._given and trial.has_enough and self._loader in self._trained:
                trial.stop()
            if self._is_over():
                trial.in_pass, trial.cut = False, True
                raise StopIteration
        try:
            batch = next(self._inner)
        except StopIteration:
            self._note()
            trial.in_pass = False
            self._tell_empty()
            raise
        if not self._given:
            trial.most_batches = max(trial.most_batches, self._length())
        self._given += 1
        trial.in_pass = may_end
        trial.reach("data")
        return batch

    def _is_over(self) -> bool:
        seen, begun = self._trial.seen, self._begun
        if seen.steps - begun.steps >= self._most_steps:
            return True
        if seen.backwards > begun.backwards:
            return False
        if seen.evaluations > begun.evaluations:
            return self._given >= 1
        return seen.forwards > begun.forwards and self._given >= _MOST_UNUSED

    def _note(self) -> None:
        """How many batches a training has of it."""
        seen, begun, facts = self._trial.seen, self._begun, self._trial.facts
        steps = seen.steps - begun.steps
        if not steps or self._loader in self._trained:
            return
        if steps >= self._most_steps or not seen.backwards:
            self._trained.add(self._loader)
        if length := self._length():
            facts["batches_per_epoch"] = length
            facts["batches_per_step"] = max(1, round(self._given / steps))

    def _length(self) -> int:
        """0 where nobody knows."""
        try:
            return len(self._loader)
        except (TypeError, NotImplementedError):
            return 0

    def _tell_empty(self) -> None:
        if not self._given and not self._trial.cut:
            size = getattr(self._loader, "batch_size", None)
            dataset: Any = getattr(self._loader, "dataset", None)
            count = len(dataset) if hasattr(dataset, "__len__") else "no"
            told = f"A loader gives no batch: {count} samples, batches of {size}."
            self._trial.find("never-steps", told, where=self._trial.here())


def _may_end(frame: FrameType) -> bool:
    if f"{frame.f_globals.get('__name__', '')}.".startswith(_PATIENT):
        return True
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("FOR_ITER")
