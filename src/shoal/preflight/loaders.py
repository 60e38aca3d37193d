"""Early end of loops over data, so that the code after them (an evaluation, a checkpoint) is reached within seconds.

Only `for` loops over a loader end early. Code that calls next() on a loader gets all batches.
"""

from __future__ import annotations

import copy
import dis
import sys
import weakref
from types import FrameType
from typing import Any

from .probe import STEPS, Probe

_PATIENT = ("accelerate.", "shoal.sdk.", "ignite.", "lightning.", "pytorch_lightning.")
"""Packages that call next() and handle StopIteration, so that their loops can end early too."""
_MOST_UNUSED = 3
"""Number of batches without a backward pass after which a loop counts as an evaluation."""


def install(torch: Any, probe: Probe) -> None:
    loader = torch.utils.data.DataLoader
    original = loader.__iter__
    trained: weakref.WeakSet[Any] = weakref.WeakSet()
    """Loaders that were used for training."""

    def __iter__(self: Any) -> Any:
        inner = original(self)
        return Pass(torch, probe, self, inner, trained) if probe.is_here else inner

    loader.__iter__ = __iter__


class Pass:
    """One pass over a loader."""

    def __init__(self, torch: Any, probe: Probe, loader: Any, inner: Any, trained: weakref.WeakSet[Any]):
        self._torch, self._probe, self._loader, self._inner, self._trained = torch, probe, loader, inner, trained
        self._begun = copy.copy(probe.seen)
        self._given = 0
        self._most_steps = STEPS if probe.seen.steps < STEPS else 1

    def __iter__(self) -> Pass:
        return self

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __next__(self) -> Any:
        probe = self._probe
        if not probe.is_here:
            return next(self._inner)
        may_end = _may_end(sys._getframe(1))
        if may_end:
            self._note()
            if not self._given and probe.has_enough and self._loader in self._trained:
                probe.stop()
            if self._is_over():
                probe.in_pass, probe.cut = False, True
                raise StopIteration
        try:
            batch = next(self._inner)
        except StopIteration:
            self._note()
            probe.in_pass = False
            self._report_empty()
            raise
        if not self._given:
            probe.most_batches = max(probe.most_batches, self._length())
        self._given += 1
        probe.in_pass = may_end
        probe.reach("data")
        return batch

    def _is_over(self) -> bool:
        seen, begun = self._probe.seen, self._begun
        if seen.steps - begun.steps >= self._most_steps:
            return True
        if seen.backwards > begun.backwards:
            return False
        if seen.evaluations > begun.evaluations:
            return self._given >= 1
        return seen.forwards > begun.forwards and self._given >= _MOST_UNUSED

    def _note(self) -> None:
        """Record the number of batches per epoch and per step of a training loader."""
        seen, begun, facts = self._probe.seen, self._begun, self._probe.facts
        steps = seen.steps - begun.steps
        if not steps or self._loader in self._trained:
            return
        if steps >= self._most_steps or not seen.backwards:
            self._trained.add(self._loader)
        if length := self._length():
            facts["batches_per_epoch"] = length
            facts["batches_per_step"] = max(1, round(self._given / steps))

    def _length(self) -> int:
        """Return the number of batches, or 0 if it is unknown."""
        try:
            return len(self._loader)
        except (TypeError, NotImplementedError):
            return 0

    def _report_empty(self) -> None:
        if not self._given and not self._probe.cut:
            size = getattr(self._loader, "batch_size", None)
            dataset: Any = getattr(self._loader, "dataset", None)
            count = len(dataset) if hasattr(dataset, "__len__") else "no"
            told = f"A loader gives no batch: {count} samples, batches of {size}."
            self._probe.find("never-steps", told, where=self._probe.here())


def _may_end(frame: FrameType) -> bool:
    if f"{frame.f_globals.get('__name__', '')}.".startswith(_PATIENT):
        return True
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("FOR_ITER")
