"""Progress of uploads and downloads: a bar with rate and time left on a terminal, a line every few seconds elsewhere.

Threads call `add`; one lock protects the counters. Ctrl-C in the main thread sets `_stopped`, and the next `add` of each
thread raises InterruptedError, so the threads end by themselves and the caller's `with` block can clean up.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType

from shoal.cli.shared.format import bar, duration, size
from shoal.cli.shared.output import out

REDRAW_S = 0.1
TALK_EVERY_S = 5.0
"""Seconds between two progress lines when stderr is not a terminal."""
WORTH_A_BAR_S = 0.4
"""Seconds before a bar is shown; quicker transfers get none."""
RATE_OVER_S = 8.0
BAR_WIDTH = 14
"""Width of the bar, chosen so that the whole line fits into 80 columns."""
INTERRUPTED = 130


class TransferBar:
    """Context manager whose `add` is a `Progress`. After Ctrl-C, `add` raises, which ends the threads that transfer;
    a second Ctrl-C ends the program at once."""

    def __init__(self, verb: str, total: int, *, on_interrupt: str = "", clock: Callable[[], float] = time.monotonic):
        self._verb, self._total, self._on_interrupt, self._clock = verb, total, on_interrupt, clock
        self._done = self._most = 0
        self._lock = threading.Lock()
        now = clock()
        self._samples: deque[tuple[float, int]] = deque()
        """(time, bytes done) since the bar was first drawn: bytes found already present would distort the rate."""
        self._next_draw, self._next_talk = now + WORTH_A_BAR_S, now + TALK_EVERY_S
        self._stopped = False
        self._before: object = None

    def __enter__(self) -> TransferBar:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        out.stick("")
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]
        if kind is not None and issubclass(kind, KeyboardInterrupt) and self._on_interrupt:
            out.end_line()
            out.info(self._on_interrupt)

    def expect(self, total: int) -> None:
        self._total = total

    def add(self, num_bytes: int) -> None:
        with self._lock:
            if self._stopped:
                raise InterruptedError
            self._done += num_bytes
            self._update(self._clock())

    def text(self, *, with_bar: bool) -> str:
        """Return the progress line: `━━━╌╌ 40 %  1.2 GiB of 3.0 GiB  85 MiB/s  21 s left`."""
        shown, total = min(self._most, self._total) if self._total else self._most, self._total
        parts = [self._verb]
        if total:
            part = (f"{bar(shown / total, BAR_WIDTH)} " if with_bar else "") + f"{shown / total:.0%}"
            parts += [part, f"{size(shown)} of {size(total)}"]
        else:
            parts.append(size(shown))
        if rate := self._rate():
            parts.append(f"{size(round(rate))}/s")
            if total > shown:
                parts.append(f"{duration((total - shown) / rate)} left")
        return "  ".join(parts)

    def _update(self, now: float) -> None:
        # A file that changes while it is read is counted again from the start; the bar must not move backwards for it.
        self._most = max(self._most, self._done)
        if now < self._next_draw:
            return
        self._next_draw = now + REDRAW_S
        self._samples.append((now, self._most))
        while now - self._samples[0][0] > RATE_OVER_S and len(self._samples) > 2:
            self._samples.popleft()
        if out.talks_to_terminal:
            out.stick(self.text(with_bar=True))
        elif now >= self._next_talk and not out.json:
            self._next_talk = now + TALK_EVERY_S
            out.dim(self.text(with_bar=False))

    def _rate(self) -> float:
        if not self._samples:
            return 0.0
        (start, first), (end, last) = self._samples[0], self._samples[-1]
        return (last - first) / (end - start) if end > start else 0.0

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self._stopped:
            # Threads may wait for a server that does not answer. The second Ctrl-C does not wait for them.
            sys.stderr.write("\n")
            os._exit(INTERRUPTED)
        self._stopped = True
        raise KeyboardInterrupt
