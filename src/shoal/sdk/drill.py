"""Fault injection in a copy of a job for `shoal training drill`: the worker kills itself, slows down, or asks its agent to act.

Run.step calls `after_step` once per global step. Events are printed to stderr, in lines that the command reads back from
the logs.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

from shoal.core import records
from shoal.core.drills import MARK, VARIABLE, Fault, Plan
from shoal.core.errors import UsageError
from shoal.sdk.spool import Spool
from shoal.sdk.verify import Iterations, Runner, Verify

_OBEYED_WITHIN_S = 15.0
_POLL_S = 0.02


class Signalled(Protocol):
    """The part of Stop that is used here: the next step with a decision, infinite if there is none."""

    next_step: float


class Rehearsal(Protocol):
    """Hooks of a run that is stopped or broken on purpose, unknown to the script."""

    def before_prepare(self, run: Runner, objects: tuple[Any, ...]) -> None: ...
    def after_step(self, run: Runner, training: Iterations | None, step: int) -> None: ...


def rehearsal(spool: Spool, stop: Signalled) -> Rehearsal | None:
    """Return the rehearsal that the environment asks for; None in an ordinary run."""
    return Verify.from_env() or Drill.from_env(spool, stop)


class Drill:
    def __init__(self, plan: Plan, spool: Spool, stop: Signalled, *, rank: int, local: int, node: int, attempt: int):
        self._plan, self._spool, self._stop = plan, spool, stop
        self._rank, self._local, self._node = rank, local, node
        mine = [f for f in plan.faults if self._is_mine(f)]
        self._slow = [f for f in mine if f.what == "slow"]
        self._due = [f for f in mine if f.what != "slow" and plan.attempt_of(f) == attempt]
        self._returned_at: float | None = None
        """Time at which the previous step returned control to the script."""

    @classmethod
    def from_env(cls, spool: Spool, stop: Signalled, env: Mapping[str, str] | None = None) -> Drill | None:
        env = os.environ if env is None else env
        text = env.get(VARIABLE)
        if not text:
            return None
        try:
            plan = Plan.load(text)
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{VARIABLE}={text!r} in the environment is not valid") from None
        rank, local, node, attempt = (
            int(env.get(name) or default)
            for name, default in (("RANK", 0), ("LOCAL_RANK", 0), ("GROUP_RANK", 0), ("SHOAL_ATTEMPT", 1))
        )
        return cls(plan, spool, stop, rank=rank, local=local, node=node, attempt=attempt)

    def before_prepare(self, run: Runner, objects: tuple[Any, ...]) -> None:
        """Do nothing: a drill starts with the first step."""

    def after_step(self, run: Runner, training: Iterations | None, step: int) -> None:
        """Inject the faults that are due at this step."""
        if self._returned_at is None and run.is_main:
            print_event("going", step=step - 1)
        # A fault may be due before this step: the previous attempt may have stopped and saved later than planned.
        for fault in [f for f in self._due if f.at <= step]:
            self._due.remove(fault)
            self._break(fault, step)
        if self._returned_at is not None:
            own_s = time.monotonic() - self._returned_at
            time.sleep(own_s * sum(f.factor - 1 for f in self._slow if f.at <= step <= (f.until or math.inf)))
        if step >= self._plan.stop_at:
            self._end(run, training, step)
        self._returned_at = time.monotonic()

    def _is_mine(self, fault: Fault) -> bool:
        """Check whether this worker injects the fault: faults of a node are requested by its local rank 0."""
        if fault.rank is not None:
            return fault.rank == self._rank
        return self._local == 0 and fault.node in (None, self._node)

    def _break(self, fault: Fault, step: int) -> None:
        number = self._plan.faults.index(fault)
        print_event("fault", step=step, fault=number)
        if fault.what == "server-down":
            self._spool.put(records.Drill(do="cut", fault=number, seconds=fault.seconds))
        elif fault.rank is not None and fault.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.rank is not None:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self._spool.put(records.Drill(do=fault.what, fault=number))
            self._wait_for_stop()

    def _wait_for_stop(self) -> None:
        """Wait until the agent's signal has arrived; a fast script would be finished before."""
        deadline = time.monotonic() + _OBEYED_WITHIN_S
        while time.monotonic() < deadline and math.isinf(self._stop.next_step):
            time.sleep(_POLL_S)

    def _end(self, run: Runner, training: Iterations | None, step: int) -> None:
        def exit_now() -> None:
            if run.is_main:
                print_event("ended", step=step)
            run.finish()
            raise SystemExit(0)

        if training is None:
            exit_now()
        else:
            training.at_iteration_end(exit_now)


def print_event(event: str, **fields: float) -> None:
    """Print an event to stderr for the command to read."""
    line = json.dumps({"event": event, **fields, "t": round(time.time(), 3)})
    sys.stderr.write(f"{MARK}{line}\n")
    sys.stderr.flush()
