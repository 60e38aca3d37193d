"""Decide when to save and when to stop: signals, requests and the clock become one step that is the same on every rank.

With one worker that is the next step. With several, a thread that wakes twice a second agrees with the other ranks
(ranks/agree.py); the training thread only compares its step with `next_step`.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from shoal.agent.wire import SAVE_WANTED
from shoal.sdk.context import Context
from shoal.sdk.ranks.agree import ALONE, DO, PATIENCE_S, Agreement, Plan
from shoal.sdk.signals import Signals
from shoal.sdk.stacks import listen

logger = logging.getLogger(__name__)

_CALM_S, _BUSY_S = 0.5, 0.05
_FORCE_S = 3.0
"""Seconds after which a rank that must stop alone is killed: without its peers it may wait in a collective for ever."""
_serial = 0


class Decision(NamedTuple):
    """Decision for all ranks after a step: save a checkpoint, stop, or both."""

    save: bool = False
    stop: bool = False


class Stop:
    """Stop and save requests of this rank. Run.step sets `step` and calls `decide` once it has reached `next_step`."""

    def __init__(
        self,
        context: Context,
        *,
        store: Callable[[], Any],
        prefix: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        force_exit: Callable[[int], None] = os._exit,
    ):
        global _serial
        _serial += 1
        # A prefix per run: a later run of the same processes must not see the keys of this one.
        self._prefix = prefix or f"shoal/stop/{context.attempt}/{_serial}/"
        self.step = 0
        self.next_step: float = math.inf
        self.every_s: float | None = None
        """Seconds between two saves; None: no saves by time. Only the value of rank 0 counts."""
        self.reason: str | None = None
        """Reason of the stop, or None."""
        self.exit_code = 0
        """Exit code for a script that calls Run.step again after the stop."""
        self._context, self._clock, self._force_exit = context, clock, force_exit
        self._make_store = store
        self._signals = Signals(self._on_signal, lambda: self.step > 0)
        self._lock = threading.Lock()
        self._plans: list[Plan] = []
        self._wish: tuple[str, int] | None = None
        self._signalled = False
        self._save_now = False
        self._save_asked = False
        self._saved_at = clock()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._forced_at: float | None = None
        self._pace: deque[tuple[float, int]] = deque(maxlen=10)

    def install(self) -> None:
        if not self._signals.install():
            logger.debug("not in the main thread: no signal handlers are set")
        if self._context.on_platform:
            listen(str(self._context.spool_dir), self._context.rank)

    def watch(self) -> None:
        """Start the thread that agrees with the other ranks, if there are any. Safe to call again."""
        if self._context.world_size == 1 or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._watch, name="shoal-stop", daemon=True)
        self._thread.start()

    def request(self, reason: str, code: int = 0) -> None:
        """Request a stop. Any rank and any thread may call it."""
        if self._wish is None:
            self._wish = (reason, code)
        if self._thread is None:
            self.next_step = 0
        else:
            self._signals.wake()

    def request_save(self) -> None:
        """Request a checkpoint soon, at a step all ranks agree on. Only the request of rank 0 counts."""
        self._save_asked = True
        if self._context.world_size == 1:
            self._save_now, self.next_step = True, 0
        else:
            self._signals.wake()

    def tick(self) -> None:
        """Check for a save request of the agent and, with one worker, for a save by time.

        The training thread calls it about once per second.
        """
        if self._context.on_platform and self._context.is_main and self._agent_wants_save():
            self.request_save()
        if self._thread is None and self._time_to_save():
            self._save_now, self.next_step = True, 0

    def saved(self) -> None:
        """Note that a checkpoint was taken: the next one by time is due `every_s` from now."""
        self._saved_at = self._clock()

    def decide(self, step: int) -> Decision:
        """Return what all ranks do after this step; wait for the outcome if it is still being agreed on."""
        if self._thread is None:
            save, self._save_now, self.next_step = self._save_now, False, math.inf
            if self._wish is None:
                return Decision(save=save)
            self.reason, self.exit_code = self._wish
            return Decision(save=True, stop=True)
        with self._lock:
            here = [p for p in self._plans if p.step <= step]
            self._plans = [p for p in self._plans if p.step > step]
            self.next_step = min((p.step for p in self._plans), default=math.inf)
        save = stop = False
        for plan in here:
            outcome = plan.wait(3 * PATIENCE_S)
            on_time = plan.step == step and outcome == DO
            save = save or on_time
            if plan.stop and (on_time or outcome == ALONE):
                stop, self.reason, self.exit_code = True, plan.why, plan.code
        return Decision(save=save, stop=stop)

    def close(self) -> None:
        """End the thread and restore the signal handlers."""
        self._closing = True
        self._signals.wake()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)
        self._signals.restore()

    def _on_signal(self, signum: int) -> None:
        """Note a signal. Runs in a signal handler: it only sets flags."""
        self._signalled = True
        if self._wish is None:
            self._wish = (signal.Signals(signum).name, 128 + signum)
        if self._thread is None:
            self.next_step = 0

    def _agent_wants_save(self) -> bool:
        """Check whether the agent asks for a checkpoint, by a file that is removed here: each request counts once."""
        try:
            (self._context.spool_dir / SAVE_WANTED).unlink()
        except OSError:
            return False
        return True

    def _time_to_save(self) -> bool:
        return self.every_s is not None and self.step > 0 and self._clock() - self._saved_at >= self.every_s

    def _arm(self, plan: Plan) -> None:
        with self._lock:
            self._plans.append(plan)
            self.next_step = min(self.next_step, plan.step)

    def _watch(self) -> None:
        try:
            agreement = Agreement(
                self._make_store(),
                rank=self._context.rank,
                world_size=self._context.world_size,
                prefix=self._prefix,
                arm=self._arm,
                step=lambda: self.step,
            )
        except Exception as error:
            logger.debug("no store to agree over (%s): this rank stops by itself", error)
            agreement = None
        lost = agreement is None
        while not self._closing:
            for signum in self._signals.wait(_BUSY_S if agreement and agreement.busy else _CALM_S):
                self._on_signal(signum)
            if self._closing:
                return
            if agreement is not None and not lost:
                lost = not self._turn(agreement)
            if lost:
                self._go_alone(agreement)
            self._force_if_stuck()

    def _turn(self, agreement: Agreement) -> bool:
        now = self._clock()
        self._pace.append((now, self.step))
        agreement.stop_wanted = self._wish
        if self._context.rank == 0 and (self._save_asked or self._time_to_save()):
            self._save_asked, agreement.save_wanted = False, True
            self.saved()
        try:
            agreement.turn(now, self._steps_per_s())
        except Exception as error:
            if not self._closing:
                logger.debug("the store is gone (%s): this rank stops by itself", error)
            return False
        return True

    def _go_alone(self, agreement: Agreement | None) -> None:
        if agreement is not None:
            agreement.stop_wanted = self._wish
            agreement.alone()
        elif self._wish is not None and self.reason is None and not self._plans:
            plan = Plan(step=0, stop=True, why=self._wish[0], code=self._wish[1])
            plan.decide(ALONE)
            self._arm(plan)

    def _steps_per_s(self) -> float:
        (t0, s0), (t1, s1) = self._pace[0], self._pace[-1]
        return (s1 - s0) / (t1 - t0) if t1 > t0 else 0.0

    def _force_if_stuck(self) -> None:
        """End the process if it must stop alone after a signal but reaches no step: it waits for dead ranks."""
        waiting = self._signalled and any(p.outcome == ALONE for p in list(self._plans))
        if not waiting:
            self._forced_at = None
        elif self._forced_at is None:
            self._forced_at = self._clock() + _FORCE_S
        elif self._clock() >= self._forced_at and self._wish is not None:
            print("shoal: stopping without a last checkpoint: the other workers do not answer", file=sys.stderr)
            sys.stderr.flush()
            self._force_exit(self._wish[1])
