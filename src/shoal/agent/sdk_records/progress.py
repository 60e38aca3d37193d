"""Progress that the SDK reports: steps, their total, and the estimated remaining time with a range. Pure."""

from __future__ import annotations

from collections import deque
from typing import Any

from shoal.core.records import Kind

_EVERY_S = 0.25
_RECENT_S = 120.0
_WINDOWS = 8


class RunProgress:
    """Collects progress records; `report` returns core.jobs.Progress as a dict, or None before the first record."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._total: int | None = None
        self._epoch: float | None = None
        self._epochs: int | None = None
        self._done = False
        self._pace: deque[tuple[float, float]] = deque(maxlen=int(_RECENT_S / _EVERY_S))
        """Points (time, fraction done), at most one per _EVERY_S."""

    def note(self, record: dict[str, Any]) -> None:
        """Update the progress from a record of kind s, p or f."""
        step, at = record.get("i"), record.get("t")
        if not isinstance(step, int) or not isinstance(at, int | float):
            return
        if record.get("k") == Kind.FINISH:
            self._done = self._done and record.get("status") == "finished"
            return
        if record.get("k") == Kind.PROGRESS:
            self._total, self._epochs = _whole(record.get("total")), _whole(record.get("epochs"))
            epoch = record.get("epoch")
            self._epoch = float(epoch) if isinstance(epoch, int | float) else None
            self._done = record.get("done") is True
        elif self._total is None and self._epochs:
            # Epochs are reported only now and then: a step between two reports says nothing about the pace.
            self._step = step
            return
        self._step = step
        self._note_pace(float(at))

    def report(self) -> dict[str, Any] | None:
        """Return the current progress, or None before the first record."""
        if self._step is None:
            return None
        fraction = 1.0 if self._done else self._fraction()
        eta, low, high = self._left(fraction)
        return {
            "step": self._step,
            "total": self._total,
            "unit": "step",
            "source": "sdk",
            "fraction": None if fraction is None else round(fraction, 6),
            "eta_s": eta,
            "eta_low_s": low,
            "eta_high_s": high,
        }

    def _fraction(self) -> float | None:
        if self._total and self._step is not None:
            return min(1.0, max(0.0, self._step / self._total))
        if self._epochs and self._epoch is not None:
            return min(1.0, max(0.0, self._epoch / self._epochs))
        return None

    def _note_pace(self, at: float) -> None:
        done = self._fraction()
        if done is None:
            return
        if self._pace and (done < self._pace[-1][1] or at < self._pace[-1][0]):
            self._pace.clear()
        if not self._pace or at - self._pace[-1][0] >= _EVERY_S:
            self._pace.append((at, done))

    def _left(self, fraction: float | None) -> tuple[float | None, float | None, float | None]:
        """Return the seconds left at the recent pace, and at the fastest and the slowest of its intervals."""
        if fraction is not None and fraction >= 1:
            return 0.0, None, None
        recent = [p for p in self._pace if self._pace[-1][0] - p[0] <= _RECENT_S]
        if fraction is None or len(recent) < 2 or recent[-1][1] <= recent[0][1]:
            return None, None, None
        (t0, f0), (t1, f1) = recent[0], recent[-1]
        left = (1 - fraction) * (t1 - t0) / (f1 - f0)
        paces = sorted(_paces(recent))
        if len(paces) < 3:
            return round(left, 1), None, None
        if len(paces) > 4:
            paces = paces[1:-1]  # a single pause or burst says little about the future
        low, high = (1 - fraction) / paces[-1], (1 - fraction) / paces[0]
        return round(left, 1), round(min(low, left), 1), round(max(high, left), 1)


def _paces(points: list[tuple[float, float]]) -> list[float]:
    """Return the progress per second in intervals of equal length; an interval without progress is joined to the next."""
    start, end = points[0][0], points[-1][0]
    length = (end - start) / _WINDOWS
    found, (t0, f0) = [], points[0]
    for at, done in points[1:]:
        if at - t0 >= length and done > f0:
            found.append((done - f0) / (at - t0))
            t0, f0 = at, done
    return found


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
