"""When to save and when to stop: signals, wishes and the clock, made into one step that is the same on every rank.

With one worker that is the next step. With more, a thread that wakes twice a second talks to the other ranks (agree.py);
the training thread only compares its step with a number.
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
from shoal.sdk.agree import ALONE, DO, PATIENCE_S, Agreement, Plan
from shoal.sdk.context import Context
from shoal.sdk.signals import Signals
from shoal.sdk.stacks import listen

logger = logging.getLogger(__name__)

_CALM_S, _BUSY_S = 0.5, 0.05
_FORCE_S = 3.0
"""A rank told to stop whose peers are gone may be stuck in a collective for ever; so long it has to come back."""
_serial = 0


class Decision(NamedTuple):
    """What to do after a step."""

    save: bool = False
    stop: bool = False


class Stop:
    """Run.step sets `step`, and asks `decide` once it has reached `next_step`."""

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
        # Later runs of the same processes start with a clean slate.
        self._prefix = prefix or f"shoal/stop/{context.attempt}/{_serial}/"
        self.step = 0
        self.next_step: float = math.inf
        self.every_s: float | None = None
        """Seconds between saves; None: none by time. Only rank 0's counts."""
        self.reason: str | None = None
        """Why the run stops or was stopped."""
        self.exit_code = 0
        """For a script that goes on after it was told to stop."""
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
            logger.debug("not in the main thread: signals are left alone")
        if self._context.on_platform:
            listen(str(self._context.spool_dir), self._context.rank)

    def watch(self) -> None:
        """Begin to agree with the other ranks, if there are any. Safe to call again."""
        if self._context.world_size == 1 or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._watch, name="shoal-stop", daemon=True)
        self._thread.start()

    def request(self, reason: str, code: int = 0) -> None:
        """Ask for a stop; any rank and any thread may."""
        if self._wish is None:
            self._wish = (reason, code)
        if self._thread is None:
            self.next_step = 0
        else:
            self._signals.wake()

    def request_save(self) -> None:
        """Ask for a checkpoint soon, at a step all ranks agree on. Only rank 0's wish counts."""
        self._save_asked = True
        if self._context.world_size == 1:
            self._save_now, self.next_step = True, 0
        else:
            self._signals.wake()

    def tick(self) -> None:
        """About once per second, from the training thread: with one worker, the clock is looked at here."""
        if self._context.on_platform and self._context.is_main and self._was_asked():
            self.request_save()
        if self._thread is None and self._time_to_save():
            self._save_now, self.next_step = True, 0

    def saved(self) -> None:
        """A checkpoint was made for whatever reason: the next by time is due so much later."""
        self._saved_at = self._clock()

    def decide(self, step: int) -> Decision:
        """What all ranks do after this step."""
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
        """Give the signals back and end the thread."""
        self._closing = True
        self._signals.wake()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)
        self._signals.restore()

    def _on_signal(self, signum: int) -> None:
        """In a signal handler: flags only."""
        self._signalled = True
        if self._wish is None:
            self._wish = (signal.Signals(signum).name, 128 + signum)
        if self._thread is None:
            self.next_step = 0

    def _was_asked(self) -> bool:
        """By the agent, once for each time it asks."""
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
            plan.settle(ALONE)
            self._arm(plan)

    def _steps_per_s(self) -> float:
        (t0, s0), (t1, s1) = self._pace[0], self._pace[-1]
        return (s1 - s0) / (t1 - t0) if t1 > t0 else 0.0

    def _force_if_stuck(self) -> None:
        """Ranks that act alone after a signal and do not come back to a step are waiting for the dead."""
        waiting = self._signalled and any(p.outcome == ALONE for p in list(self._plans))
        if not waiting:
            self._forced_at = None
        elif self._forced_at is None:
            self._forced_at = self._clock() + _FORCE_S
        elif self._clock() >= self._forced_at and self._wish is not None:
            print("shoal: told to stop, but other workers do not answer; ending without a last save", file=sys.stderr)
            sys.stderr.flush()
            self._force_exit(self._wish[1])
