"""A copy of a job that `shoal training drill` breaks on purpose: this worker kills itself, is slow, or asks its agent for worse.

Run.step calls `after_step` once per global step. What happens is told on stderr, in lines the command reads back from the
logs.
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

from shoal.core.drills import MARK, ORDER, VARIABLE, Fault, Plan
from shoal.core.errors import UsageError
from shoal.sdk.spool import Spool
from shoal.sdk.verify import Iterations, Runner, Verify

_OBEYED_WITHIN_S = 15.0
_POLL_S = 0.02


class Signalled(Protocol):
    """What it needs of a Stop: the next step at which something was agreed on, infinite while nothing was."""

    next_step: float


class Rehearsal(Protocol):
    """A run that is not quite what the script thinks it is."""

    def before_prepare(self, run: Runner, objects: tuple[Any, ...]) -> None: ...
    def after_step(self, run: Runner, training: Iterations | None, step: int) -> None: ...


def rehearsal(spool: Spool, stop: Signalled) -> Rehearsal | None:
    """None in a run that counts."""
    return Verify.from_env() or Drill.from_env(spool, stop)


class Drill:
    def __init__(self, plan: Plan, spool: Spool, stop: Signalled, *, rank: int, local: int, node: int, attempt: int):
        self._plan, self._spool, self._stop = plan, spool, stop
        self._rank, self._local, self._node = rank, local, node
        mine = [f for f in plan.faults if self._is_mine(f)]
        self._slow = [f for f in mine if f.what == "slow"]
        self._due = [f for f in mine if f.what != "slow" and plan.attempt_of(f) == attempt]
        self._left: float | None = None
        """When the script got control back from the step before."""

    @classmethod
    def from_env(cls, spool: Spool, stop: Signalled, env: Mapping[str, str] | None = None) -> Drill | None:
        env = os.environ if env is None else env
        text = env.get(VARIABLE)
        if not text:
            return None
        try:
            plan = Plan.load(text)
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{VARIABLE}={text!r} is not understood") from None
        rank, local, node, attempt = (
            int(env.get(name) or default)
            for name, default in (("RANK", 0), ("LOCAL_RANK", 0), ("GROUP_RANK", 0), ("SHOAL_ATTEMPT", 1))
        )
        return cls(plan, spool, stop, rank=rank, local=local, node=node, attempt=attempt)

    def before_prepare(self, run: Runner, objects: tuple[Any, ...]) -> None:
        """Do nothing: a drill begins with the first step."""

    def after_step(self, run: Runner, training: Iterations | None, step: int) -> None:
        """Break now, if this is the step for it."""
        if self._left is None and run.is_main:
            tell("going", step=step - 1)
        # Beyond its step: the attempt before this one took its time to stop, and saved later steps.
        for fault in [f for f in self._due if f.at <= step]:
            self._due.remove(fault)
            self._break(fault, step)
        if self._left is not None:
            own_s = time.monotonic() - self._left
            time.sleep(own_s * sum(f.factor - 1 for f in self._slow if f.at <= step <= (f.until or math.inf)))
        if step >= self._plan.stop_at:
            self._end(run, training, step)
        self._left = time.monotonic()

    def _is_mine(self, fault: Fault) -> bool:
        """One worker of a node asks for what concerns the node."""
        if fault.rank is not None:
            return fault.rank == self._rank
        return self._local == 0 and fault.node in (None, self._node)

    def _break(self, fault: Fault, step: int) -> None:
        number = self._plan.faults.index(fault)
        tell("fault", step=step, fault=number)
        if fault.what == "server-down":
            self._spool.write(ORDER, do="cut", fault=number, seconds=fault.seconds)
        elif fault.rank is not None and fault.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.rank is not None:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self._spool.write(ORDER, do=fault.what, fault=number)
            self._wait_for_it()

    def _wait_for_it(self) -> None:
        """Else a fast script would be through before its agent has heard of it."""
        deadline = time.monotonic() + _OBEYED_WITHIN_S
        while time.monotonic() < deadline and math.isinf(self._stop.next_step):
            time.sleep(_POLL_S)

    def _end(self, run: Runner, training: Iterations | None, step: int) -> None:
        def leave() -> None:
            if run.is_main:
                tell("ended", step=step)
            run.finish()
            raise SystemExit(0)

        if training is None:
            leave()
        else:
            training.at_iteration_end(leave)


def tell(event: str, **fields: float) -> None:
    line = json.dumps({"event": event, **fields, "t": round(time.time(), 3)})
    sys.stderr.write(f"{MARK}{line}\n")
    sys.stderr.flush()
