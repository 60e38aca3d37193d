"""Measurement of a training's time and memory: waiting for data, exchange of gradients, memory growth and time left.

A step costs a few clock readings; everything else is computed every few seconds.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from shoal.sdk.progress import Pace, duration

logger = logging.getLogger(__name__)

EVERY_S = 5.0
"""Seconds between two measurements."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LIMIT = Path("/sys/fs/cgroup/memory.max")
_USED = Path("/sys/fs/cgroup/memory.current")
_WARM_UP_S = 60.0
"""Seconds without trend measurement, because memory always grows at the beginning."""
_TREND_S = 120.0
"""Minimum seconds of data for a trend."""
_MOST_POINTS = 720
_WARN_S = 3600.0
"""Predicted seconds until memory runs out, below which a warning is logged."""
_FAR_S = 7 * 86400.0
"""Predicted seconds above which the growth is not reported."""


class Memory(NamedTuple):
    """Memory use at one time."""

    used: float
    """Bytes used by this process, or reserved on its GPU."""
    free: float
    """Bytes still available."""


class Watch:
    """Measurements of one worker. `model` is the wrapped one, because DDP measures its exchanges itself."""

    def __init__(
        self,
        model: Any = None,
        *,
        device: Any = None,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.perf_counter,
        memory: Callable[[], Memory] | None = None,
    ):
        self._model, self._every_s, self._clock = model, every_s, clock
        self._read_memory = memory or (lambda: read_memory(device))
        self._loading, self._alone, self._exchanging = (_Span(clock) for _ in range(3))
        self._pace = Pace()
        self._trend = Trend()
        self._started = clock()
        self._due = self._started
        self._before: tuple[float, int, float] | None = None
        """Time, samples seen and seconds of loading at the last measurement."""
        self._now: dict[str, float] = {}
        self._left: tuple[float, float, float] | None = None
        self.network_s: float | None = None
        """Seconds per step spent waiting for the exchange of gradients; None while unknown."""
        self._warned = False

    def loading(self) -> _Span:
        """Return a context manager that measures the wait for the next batch."""
        return self._loading

    def backward(self, *, exchanges: bool) -> _Span:
        """Return a context manager that measures a backward pass, with or without an exchange of gradients."""
        return self._exchanging if exchanges else self._alone

    def after_step(self, seen: int, target: int) -> dict[str, float]:
        """Return figures to log with this step: every few seconds, otherwise an empty dict."""
        now = self._clock()
        if now < self._due:
            return {}
        self._due = now + self._every_s
        return self._measure(now, seen, target)

    def report(self) -> str:
        """Return the last measurement as text."""
        found, parts = self._now, []
        if "speed/samples_per_s" in found:
            parts.append(f"{found['speed/samples_per_s']:.4g} samples/s")
        if "speed/data_wait" in found:
            parts.append(f"{found['speed/data_wait']:.1%} of the time waiting for data")
        if "speed/network_wait" in found:
            parts.append(f"{found['speed/network_wait']:.1%} for the network")
        if "memory/gb" in found:
            parts.append(f"memory {found['memory/gb']:.2f} GB{self._growth()}")
        if self._left is not None:
            left, low, high = (duration(s) for s in self._left)
            parts.append(f"{left} left" + (f" ({low} to {high})" if low != high else ""))
        return ", ".join(parts)

    @property
    def seconds_loading(self) -> float:
        """Seconds spent waiting for data so far."""
        return self._loading.total

    @property
    def runs_out_s(self) -> float | None:
        """Seconds until memory runs out at its current growth; None if it does not grow."""
        return self._trend.runs_out_s()

    def _measure(self, now: float, seen: int, target: int) -> dict[str, float]:
        memory = self._read_memory()
        if now - self._started >= _WARM_UP_S:
            self._trend.add(now, memory)
        self._pace.add(now, seen)
        self._left = self._pace.left_s(now, seen, target)
        before, self._before = self._before, (now, seen, self._loading.total)
        self._now = {"memory/gb": memory.used / 1e9}
        if before is not None and now > before[0]:
            span = now - before[0]
            self._now["speed/samples_per_s"] = (seen - before[1]) / span
            self._now["speed/data_wait"] = min(1.0, (self._loading.total - before[2]) / span)
            self.network_s = self._measured_by_ddp()
            if self.network_s is not None:
                self._now["speed/network_wait"] = min(1.0, self.network_s * self._exchanging.count / span)
        self._alone.forget()
        self._exchanging.forget()
        self._warn()
        return dict(self._now)

    def _measured_by_ddp(self) -> float | None:
        """Return the exchange time that does not overlap with the backward pass, which DDP measures in some steps."""
        read = getattr(self._model, "_get_ddp_logging_data", None)
        if read is None:
            return self._by_comparison()
        try:
            found = read()
            exchange, hidden = found["avg_backward_comm_time"], found["avg_backward_compute_comm_overlap_time"]
        except (KeyError, RuntimeError):
            return self._by_comparison()
        return max(0.0, (exchange - hidden) / 1e9) if exchange else self._by_comparison()

    def _by_comparison(self) -> float | None:
        """Return how much longer backward passes with an exchange take than those that only accumulate."""
        if not self._alone.count or not self._exchanging.count:
            return None
        return max(0.0, self._exchanging.mean - self._alone.mean)

    def _growth(self) -> str:
        left = self.runs_out_s
        if left is None or left > _FAR_S:
            return ""
        return f", growing by {self._trend.per_s * 60 / 1e6:.3g} MB per minute: runs out in about {duration(left)}"

    def _warn(self) -> None:
        left = self.runs_out_s
        if not self._warned and left is not None and left < _WARN_S:
            self._warned = True
            logger.warning("shoal: memory %.2f GB%s", self._now["memory/gb"], self._growth())


class _Span:
    """Context manager that sums up the time spent inside."""

    __slots__ = ("_clock", "_start", "count", "total")

    def __init__(self, clock: Callable[[], float]):
        self._clock, self._start = clock, 0.0
        self.forget()

    def forget(self) -> None:
        self.total, self.count = 0.0, 0

    @property
    def mean(self) -> float:
        return self.total / self.count

    def __enter__(self) -> None:
        self._start = self._clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.total += self._clock() - self._start
        self.count += 1


class Trend:
    """Linear trend of memory use."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, Memory]] = deque(maxlen=_MOST_POINTS)
        self.per_s = 0.0

    def add(self, now: float, memory: Memory) -> None:
        self._points.append((now, memory))

    def runs_out_s(self) -> float | None:
        """Return the seconds until memory runs out; None unless it grows steadily and by more than the usual variation."""
        points = self._points
        if len(points) < 8 or points[-1][0] - points[0][0] < _TREND_S:
            return None
        n, t0 = len(points), points[0][0]
        times, used = [t - t0 for t, _ in points], [m.used for _, m in points]
        mean_t, mean_u = sum(times) / n, sum(used) / n
        var_t = sum((t - mean_t) ** 2 for t in times)
        var_u = sum((u - mean_u) ** 2 for u in used)
        both = sum((t - mean_t) * (u - mean_u) for t, u in zip(times, used, strict=True))
        self.per_s = both / var_t
        grown = self.per_s * times[-1]
        if grown < max(0.01 * mean_u, 16e6) or both * both < 0.7 * var_t * var_u:
            return None
        return points[-1][1].free / self.per_s


def read_memory(device: Any = None) -> Memory:
    """Return the memory of the GPU; without one, that of this process and what the machine or container has free."""
    if device is not None and device.type == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        used = torch.cuda.memory_reserved(device)
        return Memory(float(used), float(free + used - torch.cuda.memory_allocated(device)))
    used = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    free = next((int(parts[1]) << 10 for parts in lines if parts[0] == "MemAvailable:"), 0)
    with suppress(OSError, ValueError):
        free = min(free, int(_LIMIT.read_text()) - int(_USED.read_text()))
    return Memory(float(used), float(free))
