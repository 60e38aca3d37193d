"""Process of one trial of a function: it calls the function, sends its reports to the parent, and ends when pruned."""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from shoal.core.errors import UsageError
from shoal.core.sweeps import SweepSpec, TrialState

_SKIPPED = 77
"""Exit code of `shoal.skip_trial`."""
_PR_SET_PDEATHSIG = 1
_GRACE_S = 1.0


class Reported(NamedTuple):
    value: float


class Over(NamedTuple):
    state: TrialState
    reason: str | None = None


class Pruned(BaseException):
    """Raised in a trial when others are better. Not an Exception, so that functions that catch errors do not catch it."""


def run_trial(
    function: Callable[..., Any],
    make: Callable[[dict[str, Any]], Any],
    values: dict[str, Any],
    connection: Connection,
    spec: SweepSpec,
    number: int,
) -> None:
    """Run one trial in the child process."""
    _prepare_process(values, spec, number)
    reporter = _Reporter(connection, spec.metric)
    try:
        over = _call(function, make(values), reporter)
    except Pruned:
        over = Over(TrialState.PRUNED)
    except SystemExit as error:
        over = _exited(error)
    except BaseException as error:
        traceback.print_exc()
        over = Over(TrialState.FAILED, f"{type(error).__name__}: {error}")
    with suppress(OSError):
        connection.send(over)


def end_group(processes: Sequence[Any]) -> None:
    """End these processes and all that they have started: SIGTERM first, then SIGKILL."""
    for signum, grace_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
        alive = [process for process in processes if process.is_alive()]
        for process in alive:
            for kill in (os.killpg, os.kill):  # a process that has just started has no group yet
                with suppress(ProcessLookupError, PermissionError):
                    kill(process.pid, signum)
        until = time.monotonic() + (grace_s or 0.0)
        for process in alive:
            process.join(None if grace_s is None else max(0.0, until - time.monotonic()))


class _Reporter:
    def __init__(self, connection: Connection, metric: str):
        self._connection, self._metric = connection, metric
        self.count = 0

    def __call__(self, value: Any) -> None:
        """Report a value of the metric; raise Pruned if other trials are better."""
        if isinstance(value, Mapping):
            if self._metric not in value:
                known = ", ".join(map(str, value))
                raise UsageError(
                    f"the reported values have no {self._metric}: {known}", hint="pass metric=… to shoal.sweep"
                )
            value = value[self._metric]
        self.count += 1
        self._connection.send(Reported(float(value)))
        if self._connection.recv():
            raise Pruned


def _call(function: Callable[..., Any], params: Any, report: _Reporter) -> Over:
    result = function(params, report) if _accepts_report(function) else function(params)
    if isinstance(result, Iterator):
        result = _through(result, report)
    if result is not None:
        with suppress(Pruned):  # the function has already ended
            report(result)
    if not report.count:
        return Over(TrialState.FAILED, "the function reported no value: return it or yield it")
    return Over(TrialState.DONE)


def _through(values: Iterator[Any], report: _Reporter) -> Any:
    """Report each value that the iterator yields; return its return value."""
    try:
        while True:
            report(next(values))
    except StopIteration as end:
        return end.value
    finally:
        if inspect.isgenerator(values):
            values.close()


def _accepts_report(function: Callable[..., Any]) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        taken = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [p for p in taken if p.kind in kinds and p.default is inspect.Parameter.empty]
    return len(needed) > 1 or any(p.name == "report" for p in taken)


def _exited(error: SystemExit) -> Over:
    if error.code == _SKIPPED:
        return Over(TrialState.SKIPPED, next(iter(getattr(error, "__notes__", [])), None))
    return Over(TrialState.FAILED, f"it ended with code {error.code}")


def _prepare_process(values: dict[str, Any], spec: SweepSpec, number: int) -> None:
    """Make a process group that ends with the parent, and set the environment variables of a trial."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    plain = {name: value for name, value in values.items() if _is_json(value)}
    os.environ |= {"SHOAL_PARAMS": json.dumps(plain), "SHOAL_SWEEP": spec.name, "SHOAL_TRIAL": str(number)}
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # otherwise torch waits for threads of the parent that do not exist here


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
