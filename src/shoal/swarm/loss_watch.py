"""When the swarm's loss explodes, and which round's state was the last good one. Pure: the keeper and every peer feed it."""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

from shoal.swarm.robust import middle

Verdict = Literal["ok", "explode"]


class LossWatch:
    """A loss well above the best the swarm has held is suspicious; several in a row, one far above, or no number explode.

    Suspicious losses teach it nothing: a run that creeps upwards is measured against what it once was.
    """

    def __init__(self, *, above: float = 0.5, far: float = 2.0, patience: int = 2, window: int = 10):
        self._above, self._far = above, far
        """How much above the best median, as a share of it: suspicious, and more than anybody need see twice."""
        self._patience = patience
        self._recent: deque[float] = deque(maxlen=window)
        self._best = math.inf
        self._streak = 0
        self.good_round: int | None = None
        """The newest round whose state was trained on with a loss that was ok."""

    def feed(self, loss: float, round_: int | None = None) -> Verdict:
        """`loss`: the mean over a round that started from the state of `round_`."""
        if not math.isfinite(loss):
            return "explode"
        if self._is_above(loss, self._above):
            self._streak += 1
            return "explode" if self._streak >= self._patience or self._is_above(loss, self._far) else "ok"
        self._streak = 0
        self._recent.append(loss)
        self._best = min(self._best, middle(list(self._recent)))
        if round_ is not None:
            self.good_round = round_
        return "ok"

    def rolled_back(self) -> None:
        """The swarm is at `good_round` again: what was learnt holds, the streak does not."""
        self._streak = 0

    def _is_above(self, loss: float, share: float) -> bool:
        if not self._recent:
            return False
        usual = middle(list(self._recent))
        spread = middle([abs(value - usual) for value in self._recent])
        return loss > self._best + max(share * abs(self._best), 3 * 1.4826 * spread)
