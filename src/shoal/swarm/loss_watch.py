"""Detection of an exploding loss, and of the last round whose state was good. Pure: the coordinator feeds it."""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

from shoal.swarm.averaging.robust import middle

Verdict = Literal["ok", "explode"]


class LossWatch:
    """Judge of a swarm's loss, round by round.

    A loss well above the best median so far is suspicious. Several suspicious losses in a row, one far above, or one that is
    not finite mean "explode". Suspicious losses do not change the reference, so a slow rise is detected as well.
    """

    def __init__(self, *, above: float = 0.5, far: float = 2.0, patience: int = 2, window: int = 10):
        self._above, self._far = above, far
        """Shares above the best median: from the first a loss is suspicious, from the second it explodes at once."""
        self._patience = patience
        self._recent: deque[float] = deque(maxlen=window)
        self._best = math.inf
        self._streak = 0
        self.good_round: int | None = None
        """Newest round whose state led to an unsuspicious loss."""

    def feed(self, loss: float, round_: int | None = None) -> Verdict:
        """Add the mean loss of a round that started from the state of `round_`, and return the verdict."""
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
        """Forget the suspicious losses in a row, after the swarm has returned to `good_round`."""
        self._streak = 0

    def _is_above(self, loss: float, share: float) -> bool:
        if not self._recent:
            return False
        usual = middle(list(self._recent))
        spread = middle([abs(value - usual) for value in self._recent])
        return loss > self._best + max(share * abs(self._best), 3 * 1.4826 * spread)
