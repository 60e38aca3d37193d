"""Sweep of a function on this machine: each trial is a process; no server is needed."""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.connection import Connection, wait
from typing import Any

from shoal.core.errors import JobFailed, Refused
from shoal.core.schema import utcnow
from shoal.core.sweeps import Params, SweepSpec, TrialState, TrialView
from shoal.tune.child import Over, Reported, end_group, run_trial
from shoal.tune.compare import board_for, loss_text
from shoal.tune.curve import Curve
from shoal.tune.interrupts import HeldInterrupts
from shoal.tune.python_space import Space
from shoal.tune.search import Searcher, Tried

GIVE_UP_AFTER = 3
"""Number of failed trials after which the sweep ends if none has succeeded: the others would fail too."""
_GOOD = (TrialState.DONE, TrialState.PRUNED)
_WAIT_S = 0.5
"""Longest wait, in seconds: a ^C that arrives during a wait is handled after it."""


@dataclass(slots=True)
class LocalSweep:
    """Result of a sweep that has run on this machine."""

    name: str
    direction: str
    trials: list[TrialView]
    """Trials in the order they were started."""

    @property
    def best(self) -> TrialView | None:
        """Trial with the best result; None if there is no result."""
        sign = 1 if self.direction == "min" else -1
        known = [trial for trial in self.trials if trial.result is not None]
        return min(known, key=lambda trial: sign * (trial.result or 0.0), default=None)

    def wait(self, timeout_s: float | None = None) -> LocalSweep:
        """Return at once: the sweep has already ended."""
        return self


@dataclass(slots=True)
class _Trial:
    number: int
    found: Params
    """Values by index, as the searcher uses them."""
    values: dict[str, Any]
    curve: Curve
    connection: Connection
    process: Any
    began: float = field(default_factory=time.monotonic)
    created_at: datetime = field(default_factory=utcnow)
    pruned: str | None = None


class Runner:
    """Runs `spec.parallel` processes at a time until all trials have ended."""

    def __init__(self, function: Callable[..., Any], spec: SweepSpec, space: Space, *, say: Callable[[str], None]):
        self._function, self._spec, self._space, self._say = function, spec, space, say
        self._searcher = Searcher(spec)
        self._board = board_for(spec)
        self._running: dict[Connection, _Trial] = {}
        self._ended: dict[int, TrialView] = {}
        self._next = 0
        self._interrupts = HeldInterrupts()
        self._first_failure: str | None = None

    def run(self) -> LocalSweep:
        _check_can_fork()
        with self._interrupts:
            try:
                while self._begin() or self._running:
                    for connection in wait(list(self._running), _WAIT_S):
                        self._receive(self._running[connection])  # type: ignore[index]
                    self._interrupts.check()
            finally:
                end_group([trial.process for trial in self._running.values()])
        trials = [self._ended[number] for number in sorted(self._ended)]
        if trials and all(trial.state is TrialState.FAILED for trial in trials):
            raise JobFailed(f"All of the first {len(trials)} trials failed: {self._first_failure}")
        return LocalSweep(self._spec.name, self._spec.direction, trials)

    def _begin(self) -> bool:
        """Start trials while there are free processes. Return whether one was started."""
        began = False
        while len(self._running) < self._spec.parallel and not self._gives_up:
            for trial in self._running.values():
                self._update_searcher(trial, TrialState.RUNNING)
            found = self._searcher.ask(self._next)
            if found is None:
                break
            self._start(found)
            began = True
        return began

    @property
    def _gives_up(self) -> bool:
        states = [trial.state for trial in self._ended.values()]
        return states.count(TrialState.FAILED) >= GIVE_UP_AFTER and not any(state in _GOOD for state in states)

    def _start(self, found: Params) -> None:
        number, values = self._next, self._space.values(found)
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(
            target=run_trial,
            args=(self._function, self._space.make, values, theirs, self._spec, number),
            name=f"{self._spec.name}-{number}",
        )
        trial = _Trial(number, found, values, Curve(self._spec.direction), ours, process)
        self._running[ours] = trial  # before its start: a second ^C ends the processes that are known
        process.start()
        theirs.close()
        self._update_searcher(trial, TrialState.RUNNING)
        self._next += 1

    def _receive(self, trial: _Trial) -> None:
        try:
            message = trial.connection.recv()
        except (EOFError, OSError):
            self._join(trial)
            self._end(trial, Over(TrialState.FAILED, _death(trial.process.exitcode)))
            return
        if isinstance(message, Reported):
            trial.connection.send(self._is_pruned(trial, message.value))
            return
        self._join(trial)
        self._end(trial, message)

    def _join(self, trial: _Trial) -> None:
        """Wait for the end of the process: what a function has left behind can delay it."""
        while trial.process.is_alive():
            trial.process.join(_WAIT_S)
            self._interrupts.check()

    def _is_pruned(self, trial: _Trial, value: float) -> bool:
        trial.curve.add([value])
        if self._board is None:
            return False
        self._board.add(trial.number, trial.curve)
        loss = self._board.loss(trial.number)
        trial.pruned = loss_text(loss, self._spec) if loss else None
        return loss is not None

    def _end(self, trial: _Trial, over: Over) -> None:
        del self._running[trial.connection]
        trial.connection.close()
        if over.state is TrialState.FAILED and self._first_failure is None:
            self._first_failure = over.reason
        self._update_searcher(trial, over.state)
        best = trial.curve.best
        self._ended[trial.number] = view = TrialView(
            number=trial.number,
            params=trial.values,
            state=over.state,
            result=best if best is not None and math.isfinite(best) else None,
            reports=len(trial.curve),
            step=None,
            job=None,
            job_id=None,
            job_status=None,
            reason=trial.pruned if over.state is TrialState.PRUNED else over.reason,
            seconds=time.monotonic() - trial.began,
            created_at=trial.created_at,
            ended_at=utcnow(),
        )
        self._say("  ".join(_words(view, len(self._ended), self._searcher.count)))

    def _update_searcher(self, trial: _Trial, state: TrialState) -> None:
        self._searcher.tell(Tried(trial.number, trial.found, values=trial.curve, state=state))


def _words(trial: TrialView, ended: int, count: int) -> Iterator[str]:
    yield f"{ended} of {count}: trial {trial.number}"
    yield trial.state
    yield "-" if trial.result is None else f"{trial.result:.6g}"
    yield " ".join(f"{name}={value}" for name, value in trial.params.items())
    if trial.reason:
        yield f"({trial.reason})"


def _death(code: int | None) -> str:
    return f"its process was killed by signal {-code}" if code and code < 0 else f"its process ended with code {code}"


def _check_can_fork() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise Refused(
            "this process already uses CUDA, which does not work in the forked processes of trials",
            hint="move the code that uses the GPU into the function, or sweep a script",
        )
