"""Agreement of all ranks on one step, through a key-value store. The training threads never use the network.

Rank 0 proposes a step some way ahead. Every rank first arms it (its training thread will halt there), then votes whether
it was still in time. If all were, the plan holds; if one was late, the plan is dropped and a later step is proposed; if a
rank does not vote, it is considered dead and every rank acts alone. A training thread that reaches an armed step before the
outcome is known waits for it there, on a local event.
"""

# Why this is safe:
# - An Agreement belongs to the thread that calls `turn` (Stop's). The training thread only compares its step with
#   Stop.next_step and waits on a Plan's event; `arm` adds the plan to Stop's list under Stop's lock.
# - Arm first, then read the step, then vote: the training thread writes its step before it reads `next_step`. So if a rank
#   votes yes, its training thread will see the plan at or before that step. No rank passes an agreed step.
# - Only rank 0 writes `plan/N` and `do/N`; votes are atomic additions. Every round has its own keys, so a late vote cannot
#   count in another round. A rank that misses a round's outcome reads it from the store later.
# - A rank that dies before it votes: rank 0 decides ALONE after PATIENCE_S. Rank 0 dies between proposal and outcome: the
#   others act alone after twice that. A rank that dies after its vote: the next collective fails and the launcher restarts.

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from typing import Any

PATIENCE_S = 5.0
"""Seconds to wait for the vote of a rank. Its thread votes within half a second, whatever its training thread does."""
AHEAD_S = 1.5
"""Seconds between a proposal and its step: three times as long as a vote takes in the worst case."""
DO, SKIP, ALONE = "do", "skip", "alone"


class Plan:
    """Plan to save, or to save and stop, after a given step."""

    def __init__(self, *, step: int, stop: bool, why: str, code: int):
        self.step, self.stop, self.why, self.code = step, stop, why, code
        self.outcome: str | None = None
        self._settled = threading.Event()

    def decide(self, outcome: str) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self._settled.set()

    def wait(self, timeout_s: float) -> str:
        """Wait for the outcome and return it. After `timeout_s` it is ALONE for a stop, SKIP for a save."""
        if not self._settled.wait(timeout_s):
            self.decide(ALONE if self.stop else SKIP)
        return self.outcome or SKIP


class Agreement:
    """One rank's part in the agreement. A background thread calls `turn` a few times per second."""

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
        """Reason and exit code of this rank's own request to stop."""
        self.save_wanted = False
        """True if rank 0 requests a checkpoint."""

    @property
    def busy(self) -> bool:
        """True while something is being decided: `turn` should be called more often."""
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
        """Settle without the other ranks, which do not answer: carry out a stop, drop a save."""
        plan, self._plan = self._plan, None
        if plan is not None:
            plan.decide(ALONE if plan.stop else SKIP)
        if self.stop_wanted and not self._stop_settled:
            self._stop_settled = True
            why, code = self.stop_wanted
            plan = Plan(step=0, stop=True, why=why, code=code)
            plan.decide(ALONE)
            self._arm(plan)

    def _propose(self, steps_per_s: float) -> None:
        if self._stop_settled:
            return  # the stop saves too, and some ranks may have ended before the next step
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
        # Arm before reading the step: a training thread at a lower step is then sure to see the plan.
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
            # Proposed again: rank 0 repeats its request to save; requests to stop are still counted in the store.
            self.save_wanted = self.save_wanted or (self._rank == 0 and not plan.stop)
        else:
            self._late = 0
        plan.decide(outcome if plan.stop or outcome != ALONE else SKIP)
        self._since = now

    def _set(self, key: str, value: Any) -> None:
        self._store.set(self._prefix + key, json.dumps(value))

    def _get(self, key: str) -> Any:
        return json.loads(self._store.get(self._prefix + key))

    def _add(self, key: str, amount: int) -> int:
        return int(self._store.add(self._prefix + key, amount))
