"""All ranks agree on one step, over a key-value store, without the training threads ever touching the network.

Rank 0 proposes a step some way ahead. Every rank first arms it (its training thread will halt there), then votes on
whether it was still in time. If all were, the plan holds; if one was late, it is dropped and a later step proposed; if
one does not vote at all it is taken for dead and everybody acts alone. A training thread that gets to an armed step
before the outcome is known waits for it there, on a local event.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from typing import Any

PATIENCE_S = 5.0
"""For a peer's vote. Its watching thread votes within half a second whatever its training thread is doing."""
AHEAD_S = 1.5
"""Steps are proposed so far ahead: three times as long as a vote takes at worst."""
DO, SKIP, ALONE = "do", "skip", "alone"


class Plan:
    """To save, or to save and stop, after a given step."""

    def __init__(self, *, step: int, stop: bool, why: str, code: int):
        self.step, self.stop, self.why, self.code = step, stop, why, code
        self.outcome: str | None = None
        self._settled = threading.Event()

    def settle(self, outcome: str) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self._settled.set()

    def wait(self, timeout_s: float) -> str:
        """The outcome; a plan nobody settles in time is settled here."""
        if not self._settled.wait(timeout_s):
            self.settle(ALONE if self.stop else SKIP)
        return self.outcome or SKIP


class Agreement:
    """One rank's part. `turn` is called by a thread of its own a few times per second."""

    def __init__(
        self,
        store: Any,
        *,
        rank: int,
        world_size: int,
        prefix: str,
        arm: Callable[[Plan], None],
        step: Callable[[], int],
    ):
        self._store, self._rank, self._world, self._prefix = store, rank, world_size, prefix
        self._arm, self._step = arm, step
        self._round = 0
        self._plan: Plan | None = None
        self._since = 0.0
        self._late = 0
        self._told = False
        self._stop_settled = False
        self.stop_wanted: tuple[str, int] | None = None
        """Reason and exit code of this rank's own wish to stop."""
        self.save_wanted = False
        """Rank 0's wish for a checkpoint."""

    @property
    def busy(self) -> bool:
        """Something is being decided: take turns more often."""
        return self._plan is not None or (self.stop_wanted is not None and not self._stop_settled)

    def turn(self, now: float, steps_per_s: float) -> None:
        if self.stop_wanted and not self._told:
            self._set("why", list(self.stop_wanted))
            self._add("want", 1)
            self._told, self._since = True, now
        if self._rank == 0 and self._plan is None:
            self._propose(steps_per_s)
        if self._plan is None:
            self._vote(now)
        if self._rank == 0 and self._plan is not None:
            self._count(now)
        if self._plan is not None:
            self._learn(now)
        elif self.stop_wanted and not self._stop_settled and now - self._since > PATIENCE_S:
            self.alone()

    def alone(self) -> None:
        """No answer from the others: stop without them, if stopping is what was asked for."""
        plan, self._plan = self._plan, None
        if plan is not None:
            plan.settle(ALONE if plan.stop else SKIP)
        if self.stop_wanted and not self._stop_settled:
            self._stop_settled = True
            why, code = self.stop_wanted
            plan = Plan(step=0, stop=True, why=why, code=code)
            plan.settle(ALONE)
            self._arm(plan)

    def _propose(self, steps_per_s: float) -> None:
        if self._stop_settled:
            return  # that saves too, and some ranks may have left by the next step
        stop = self._add("want", 0) > 0
        if not stop and not self.save_wanted:
            return
        why, code = self._get("why") if stop else ("", 0)
        ahead = max(2, math.ceil(steps_per_s * AHEAD_S)) << self._late
        self._set(f"plan/{self._round}", [self._step() + ahead, stop, why, code])
        if not stop:
            self.save_wanted = False

    def _vote(self, now: float) -> None:
        key = f"plan/{self._round}"
        if not self._store.check([self._prefix + key]):
            return
        step, stop, why, code = self._get(key)
        self._plan, self._since = Plan(step=step, stop=stop, why=why, code=code), now
        # Armed before the step is read: a training thread at a lower step is then sure to see it.
        self._arm(self._plan)
        self._add(f"{'yes' if self._step() < step else 'no'}/{self._round}", 1)

    def _count(self, now: float) -> None:
        yes, no = self._add(f"yes/{self._round}", 0), self._add(f"no/{self._round}", 0)
        if yes + no == self._world:
            self._set(f"do/{self._round}", DO if not no else SKIP)
        elif now - self._since > PATIENCE_S:
            self._set(f"do/{self._round}", ALONE)

    def _learn(self, now: float) -> None:
        key, plan = f"do/{self._round}", self._plan
        if plan is None:
            return
        if not self._store.check([self._prefix + key]):
            if now - self._since > 2 * PATIENCE_S:
                self.alone()
            return
        outcome = self._get(key)
        self._plan, self._round = None, self._round + 1
        if plan.stop and outcome != SKIP:
            self._stop_settled = True
        if outcome == SKIP:
            self._late += 1
            # Asked for again by whoever asked: rank 0 sees its own wish, or the count of wishes in the store.
            self.save_wanted = self.save_wanted or (self._rank == 0 and not plan.stop)
        else:
            self._late = 0
        plan.settle(outcome if plan.stop or outcome != ALONE else SKIP)
        self._since = now

    def _set(self, key: str, value: Any) -> None:
        self._store.set(self._prefix + key, json.dumps(value))

    def _get(self, key: str) -> Any:
        return json.loads(self._store.get(self._prefix + key))

    def _add(self, key: str, amount: int) -> int:
        return int(self._store.add(self._prefix + key, amount))
