"""How far a job is, read off what it prints: tqdm bars, `step 50/200`, `[50/200]`, `Epoch 3/10`, `iter 40 of 100`. Pure."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

_BAR = re.compile(rb"\|\s*(\d{1,13})/(\d{1,13}) \[")
_STEP = re.compile(
    rb"\b(?:global[ _])?(?:step|iter|iteration|batch)e?s?\s*[:=#]?\s*[\[(]?\s*(\d{1,13})\s*(?:/|of)\s*(\d{1,13})\b",
    re.IGNORECASE,
)
_EPOCH = re.compile(rb"\bepochs?\s*[:=#]?\s*[\[(]?\s*(\d{1,13})\s*(?:/|of)\s*(\d{1,13})\b", re.IGNORECASE)
_BRACKET = re.compile(rb"\[\s*(\d{1,13})\s*/\s*(\d{1,13})(?=[\]\s(,:])(?!\s+\d\d?:\d\d)")
_DIGIT = re.compile(rb"\d")
_MAX_TOTAL = 10**12
_PACE_S = 60.0
_STALE_S = 300.0


class ProgressReader:
    """Feed it the lines of one rank; `report` gives core.jobs.Progress as a dict, or None.

    Of several counters (a download, training, an evaluation inside it) the one followed is the first seen, until it is
    complete or silent for long, or one with a larger total shows up. Steps that start over with every epoch are put
    together with the epoch into one fraction.
    """

    def __init__(self) -> None:
        self._step: _Counter | None = None
        self._epoch: _Counter | None = None
        self._per_epoch: bool | None = None
        """Whether steps start over with every epoch; None while nothing tells."""
        self._pace: deque[tuple[float, float]] = deque(maxlen=256)

    def feed(self, line: bytes, now: float) -> bool:
        """True if the line said something new."""
        if (b"/" not in line and b"of" not in line) or not _DIGIT.search(line):
            return False
        epoch, step = _match(_EPOCH, line), _match(_BAR, line) or _match(_STEP, line)
        if step is None and (found := _match(_BRACKET, line)) != epoch:
            step = found
        if epoch is None and step is None:
            return False
        if epoch:
            self._note_epoch(*epoch, now)
        if step:
            self._note_step(*step, now)
        if epoch and step and self._per_epoch is None:
            self._per_epoch = epoch[1] > 1
        done = self._fraction()
        if self._pace and done < self._pace[-1][1]:
            self._pace.clear()
        self._pace.append((now, done))
        return True

    def report(self) -> dict[str, Any] | None:
        if self._combined or (self._step is None and self._epoch is not None):
            counter, unit = self._epoch, "epoch"
        else:
            counter, unit = self._step, "step"
        if counter is None:
            return None
        fraction = self._fraction()
        return {
            "step": counter.at,
            "total": counter.total,
            "unit": unit,
            "source": "log",
            "fraction": round(fraction, 6),
            "eta_s": self._eta(fraction),
        }

    @property
    def _combined(self) -> bool:
        return bool(self._per_epoch) and self._epoch is not None and self._step is not None

    def _note_epoch(self, at: int, total: int, now: float) -> None:
        if self._epoch is None or self._epoch.total != total:
            self._per_epoch = None
        self._epoch = _Counter(at, total, now, self._epoch.at if self._epoch else at)

    def _note_step(self, at: int, total: int, now: float) -> None:
        step = self._step
        if step is not None and total != step.total:
            finished, silent = step.at >= step.total, now - step.seen_at > _STALE_S
            if total < step.total and not finished and not silent:
                return
        if step is not None and total == step.total and self._epoch and self._epoch.at == step.epoch + 1:
            self._per_epoch = at < step.at
        epoch = self._epoch.at if self._epoch else 0
        self._step = _Counter(at, total, now, epoch)

    def _fraction(self) -> float:
        step, epoch = self._step, self._epoch
        if self._combined and step and epoch:
            within = step.at / step.total if step.epoch == epoch.at else 0.0
            return min(1.0, (epoch.at - 1 + within) / epoch.total)
        counter = step or epoch
        return counter.at / counter.total if counter else 0.0

    def _eta(self, fraction: float) -> float | None:
        if fraction >= 1:
            return 0.0
        last = self._pace[-1][0]
        recent = [p for p in self._pace if last - p[0] <= _PACE_S]
        if len(recent) < 2:
            recent = list(self._pace)[-2:]
        (t0, f0), (t1, f1) = recent[0], recent[-1]
        return round((1 - fraction) * (t1 - t0) / (f1 - f0), 1) if f1 > f0 and t1 > t0 else None


class _Counter:
    __slots__ = ("at", "epoch", "seen_at", "total")

    def __init__(self, at: int, total: int, seen_at: float, epoch: int):
        self.at, self.total, self.seen_at, self.epoch = at, total, seen_at, epoch


def _match(pattern: re.Pattern[bytes], line: bytes) -> tuple[int, int] | None:
    found = pattern.search(line)
    if not found:
        return None
    at, total = int(found[1]), int(found[2])
    # A date or a ratio is no progress.
    return (at, total) if 0 < total <= _MAX_TOTAL and at <= total else None
