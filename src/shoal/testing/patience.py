"""Time limits of tests, scaled by how fast this machine is right now.

A test waits for a condition; its limit only says when to give up. `patient(30)` is 30 s on an idle machine with two cores and
more on a slow or busy one. The speed is measured once, at the start of a run, and passed to all its processes in
`SHOAL_TEST_PATIENCE`.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

VARIABLE = "SHOAL_TEST_PATIENCE"
_ROUNDS = 2_000_000
_REFERENCE_S = 0.11
"""Seconds of one calibration loop on an idle machine of the kind the limits were written for."""
_MOST = 8.0


@functools.cache
def patience() -> float:
    """Return the factor for time limits: 1 on a quiet machine, up to 8 on a slow or busy one."""
    return float(os.environ.get(VARIABLE) or 1.0)


def patient(seconds: float) -> float:
    """Scale a time limit that was chosen for a quiet machine."""
    return seconds * patience()


def wait_until(condition: Callable[[], object], what: str, *, limit_s: float = 60.0, every_s: float = 0.05) -> None:
    """Return once `condition()` is true; fail with `what` after the scaled limit."""
    deadline = time.monotonic() + patient(limit_s)
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patient(limit_s):.0f} s: {what}")
        time.sleep(every_s)


def measure() -> float:
    """Time the same loop on every core at once, so that a machine shared with others counts as slow; return the factor."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    with ProcessPoolExecutor(cores) as pool:
        list(pool.map(_loop, [1_000] * cores))  # starts the processes before the measurement
        taken = statistics.median(pool.map(_loop, [_ROUNDS] * cores * 3))
    return min(_MOST, max(1.0, taken / _REFERENCE_S))


def _loop(rounds: int) -> float:
    started, total = time.perf_counter(), 0
    for number in range(rounds):
        total += number & 7
    return time.perf_counter() - started
