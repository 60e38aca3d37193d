"""Progress line of `run.loop`, with an estimate of the time left and its range."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

_BLOCK_S = 1.0
_BLOCKS = 60
"""Number of recent blocks (of at least _BLOCK_S each) whose mean step times give the range of the estimate."""
_LIVE_S, _PLAIN_S = 0.1, 10.0
_WIDTH = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Contents of the progress line."""

    step: int
    total: int | None = None
    desc: str | None = None
    metric: tuple[str, float] | None = None
    steps_per_s: float | None = None
    left_s: tuple[float, float, float] | None = None
    """Expected seconds left, and the lower and upper end of their range."""
    saved_s: float | None = None
    """Age of the newest checkpoint in seconds."""


class Pace:
    """Step times of about the last minute, in blocks, so that single slow steps do not disturb the estimate."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[float, int]] = deque(maxlen=_BLOCKS)
        self._start: tuple[float, int] | None = None

    def add(self, now: float, step: int) -> None:
        if self._start is None:
            self._start = (now, step)
            return
        t, s = self._start
        if step > s and now - t >= _BLOCK_S:
            self._blocks.append((now - t, step - s))
            self._start = (now, step)

    def steps_per_s(self, now: float, step: int) -> float | None:
        seconds, steps = (sum(b[i] for b in self._blocks) for i in (0, 1))
        if not steps and self._start is not None:
            seconds, steps = now - self._start[0], step - self._start[1]
        return steps / seconds if steps > 0 and seconds > 0 else None

    def left_s(self, now: float, step: int, total: int) -> tuple[float, float, float] | None:
        """Return the expected seconds to step `total`, and the same at the speed of the fastest and slowest tenth of blocks."""
        rate = self.steps_per_s(now, step)
        if rate is None:
            return None
        left = max(0, total - step)
        times = sorted(seconds / steps for seconds, steps in self._blocks)
        if len(times) < 3:
            return left / rate, left / rate, left / rate
        edge = len(times) // 10
        return left / rate, left * min(times[edge], 1 / rate), left * max(times[-1 - edge], 1 / rate)


class Line:
    """Progress line: redrawn in place on a terminal, elsewhere a plain line every ten seconds."""

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic):
        self._stream = sys.stderr if stream is None else stream
        self._live = _is_terminal(self._stream)
        self._clock = clock
        self._every_s = _LIVE_S if self._live else _PLAIN_S
        self._drawn_at = clock() if not self._live else -math.inf
        self._drawn_step = -1

    @property
    def due(self) -> bool:
        return self._clock() - self._drawn_at >= self._every_s

    def draw(self, standing: Standing) -> None:
        self._drawn_at, self._drawn_step = self._clock(), standing.step
        if not self._live:
            self._put(plain_line(standing) + "\n")
            return
        width = shutil.get_terminal_size((100, 24)).columns
        self._put("\r" + live_line(standing)[: max(10, width - 1)] + "\x1b[K")

    def print_above(self, text: str) -> None:
        """Print a text on its own line, above the progress line."""
        self._put(f"\r{text}\x1b[K\n" if self._live else f"{text}\n")

    def close(self, standing: Standing) -> None:
        """Draw the final state and move the cursor to a new line."""
        if standing.step != self._drawn_step or self._live:
            self.draw(standing)
        if self._live:
            self._put("\n")

    def _put(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # A closed terminal must not end the training.
            self._every_s = math.inf


def plain_line(standing: Standing) -> str:
    at = f"step {standing.step}/{standing.total}" if standing.total else f"step {standing.step}"
    return "  ".join([*([standing.desc] if standing.desc else []), at, *_rest(standing)])


def live_line(standing: Standing) -> str:
    if not standing.total:
        return plain_line(standing)
    share = min(1.0, standing.step / standing.total)
    full = int(share * _WIDTH)
    bar = "━" * full + "─" * (_WIDTH - full)
    head = [*([standing.desc] if standing.desc else []), f"{share:4.0%} {bar} {standing.step}/{standing.total}"]
    return "  ".join([*head, *_rest(standing)])


def main_metric(values: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the metric to show: the loss, else the first one."""
    names = [n for n, v in values.items() if isinstance(v, float | int)]
    name = next((n for n in names if n == "loss"), None) or next((n for n in names if "loss" in n), None)
    name = name or (names[0] if names else None)
    return (name, values[name]) if name is not None else None


def duration(seconds: float) -> str:
    """Return a duration as text: 8s, 1m05s, 2h03m, 4d07h."""
    seconds = max(0, round(seconds))
    for unit, size, part, part_size in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // part_size:02d}{part}"
    return f"{seconds}s"


def _rest(standing: Standing) -> list[str]:
    parts = []
    if standing.metric:
        name, value = standing.metric
        parts.append(f"{name} {value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e4 else f"{name} {value:.4f}")
    rate = standing.steps_per_s
    if rate:
        parts.append(f"{rate:.3g} steps/s" if rate >= 0.1 else f"{1 / rate:.1f} s/step")
    if standing.left_s:
        middle, low, high = (duration(s) for s in standing.left_s)
        parts.append(f"{middle} left" + (f" ({low}–{high})" if low != high else ""))
    if standing.saved_s is not None:
        parts.append(f"saved {duration(standing.saved_s)} ago")
    return parts


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False
