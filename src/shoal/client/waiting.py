"""Polling, for changes that no event stream reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PAUSE_S = 0.5
Clock = Callable[[], float]
T = TypeVar("T")


def poll(
    look: Callable[[], T],
    is_over: Callable[[T], bool],
    *,
    within_s: float | None,
    pause_s: float = PAUSE_S,
    sleep: Callable[[float], None] = time.sleep,
    clock: Clock = time.monotonic,
) -> T:
    """Call `look` until `is_over` or until the time is up, and return its last result."""
    deadline = None if within_s is None else clock() + within_s
    while not is_over(seen := look()):
        left_s = pause_s if deadline is None else deadline - clock()
        if left_s <= 0:
            break
        sleep(min(pause_s, left_s))
    return seen
