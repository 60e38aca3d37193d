"""Reads a job's progress from its output: tqdm bars, `step 50/200`, `[50/200]`, `Epoch 3/10`, `iter 40 of 100`. Pure."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

from shoal.agent.workers.counters import Counter, Counters

_BAR = re.compile(rb"\|\s*(\d{1,13})/(\d{1,13}) \[")
_STEP = re.compile(
    rb"\b(?:global[ _])?(?:step|iter|iteration|batch)e?s?\s*[:=#]?\s*[\[(]?\s*(\d{1,13})\s*(?:/|of)\s*(\d{1,13})\b",
    re.IGNORECASE,
)
_EPOCH = re.compile(rb"\bepochs?\s*[:=#]?\s*[\[(]?\s*(\d{1,13})\s*(?:/|of)\s*(\d{1,13})\b", re.IGNORECASE)
_EPOCH_NUMBER = re.compile(rb"\bepoch\s*[:=#]?\s*[\[(]?\s*(\d{1,9})\b(?!\s*(?:%|/|of\b))", re.IGNORECASE)
_BRACKET = re.compile(rb"\[\s*(\d{1,13})\s*/\s*(\d{1,13})(?=[\]\s(,:])(?!\s+\d\d?:\d\d)")
_RICH_BAR = re.compile("\\bEpoch (\\d{1,9})/(\\d{1,9}) [━╸╺ ]+(?=\\d+/\\d+ \\d+:\\d\\d)".encode())
"""Start of Lightning's bar `Epoch 0/5 ━━━╸━━━ 4/8 0:00:01`, whose second number is that of the last epoch, counted from 0."""
_RICH_STEP = re.compile(rb"(\d{1,13})/(\d{1,13})")
_DIGIT = re.compile(rb"\d")
_NO_LETTERS = re.compile(rb"[^A-Za-z]+")
_MAX_TOTAL = 10**12
_PACE_S = 60.0


class ProgressReader:
    """Reads progress from the lines of one rank; `report` returns core.jobs.Progress as a dict, or None.

    Of loops inside others (an epoch's steps, an evaluation during training) the outer one is the job's progress, and the inner
    one a part of its next step. Steps that start again with every epoch are combined with the epochs, or have no fraction
    while the number of epochs is unknown.
    """

    def __init__(self) -> None:
        self._counters = Counters()
        self._epoch: tuple[int, int] | None = None
        self._is_epoch_done = False
        """True if the number of an epoch counts those that are complete: numbered from 0, or printed at their end."""
        self._completed_before: Counter | None = None
        """Counter that was complete when the first epoch was printed."""
        self._within: tuple[int, float] = (0, 0.0)
        """Number of the outer loop's step, and the largest part of it seen."""
        self._pace: deque[tuple[float, float]] = deque(maxlen=256)

    def feed(self, line: bytes, now: float) -> bool:
        """Read a line; return whether it contained a counter."""
        if (b"/" not in line and b"of" not in line) or not _DIGIT.search(line):
            return False
        if (bar := _RICH_BAR.search(line)) and int(bar[1]) <= int(bar[2]):
            return self._feed_rich(line, bar, now)
        found_epoch, found = _search(_EPOCH, line), _search(_BAR, line) or _search(_STEP, line)
        epoch = _numbers(found_epoch)
        if found is None and (bracket := _search(_BRACKET, line)) and _numbers(bracket) != epoch:
            found = bracket
        if epoch is None and found is None:
            return False
        if epoch:
            self._note_epoch(*epoch)
        if found:
            self._note_step(line, found, now, is_beside_epoch=epoch is not None)
        self._note_pace(now)
        return True

    def _feed_rich(self, line: bytes, bar: re.Match[bytes], now: float) -> bool:
        found = _RICH_STEP.match(line, bar.end())
        if not found or not 0 < int(found[2]) <= _MAX_TOTAL or int(found[1]) > int(found[2]):
            return False
        self._epoch, self._is_epoch_done = (int(bar[1]), int(bar[2]) + 1), True
        self._note_step(line, found, now, is_beside_epoch=True)
        self._note_pace(now)
        return True

    def report(self) -> dict[str, Any] | None:
        """Return the current progress with an estimate of the remaining time, or None before the first counter."""
        main, fraction = self._counters.main, self._fraction()
        total: int | None
        if self._epoch is not None and (main is None or self._counts_epochs):
            (step, total), unit = self._epoch, "epoch"
        elif main is None:
            return None
        elif fraction is None:
            step, total, unit = main.restarts * main.total + main.at, None, "step"
        else:
            step, total, unit = main.at, main.total, "epoch" if b"epoch" in main.name else "step"
        return {
            "step": step,
            "total": total,
            "unit": unit,
            "source": "log",
            "fraction": None if fraction is None else round(fraction, 6),
            "eta_s": self._eta(fraction),
        }

    @property
    def _counts_epochs(self) -> bool:
        """True if steps are a part of the epochs that are printed, as far as is known."""
        main = self._counters.main
        if self._epoch is None or main is None or main.spans_epochs or self._epoch[1] < 2:
            return False
        return main.restarts > 0 or main.is_of_epoch or main.epoch is not None

    def _note_epoch(self, at: int, total: int) -> None:
        if self._epoch is None or self._epoch[1] != total:
            self._is_epoch_done = at == 0
            main = self._counters.main
            self._completed_before = main if main and main.is_complete else None
        self._epoch = (at, total)

    def _note_step(self, line: bytes, found: re.Match[bytes], now: float, *, is_beside_epoch: bool) -> None:
        before = line[: found.start()]
        number = _EPOCH_NUMBER.search(before) if not is_beside_epoch else None
        epoch = int(number[1]) if number else self._epoch[0] if self._epoch else None
        name = _NO_LETTERS.sub(b"", before).lower()
        counter = self._counters.note(name, *_pair(found), now, epoch=epoch, is_of_epoch=number is not None)
        if counter is self._completed_before and counter.restarts:
            self._is_epoch_done = True
        main = self._counters.main
        if main is counter and self._epoch and main.epoch is not None:
            self._note_within(self._epoch[0], counter)
        elif main and counter.outer is main:
            self._note_within(main.at, counter)

    def _note_within(self, outer_at: int, counter: Counter) -> None:
        part = counter.at / counter.total
        self._within = (outer_at, max(part, self._within[1]) if self._within[0] == outer_at else part)

    def _fraction(self) -> float | None:
        main = self._counters.main
        if self._epoch is not None and self._counts_epochs:
            at, total = self._epoch
            return min(1.0, (at - (not self._is_epoch_done) + self._part_of(at)) / total)
        if main is None:
            return self._epoch[0] / self._epoch[1] if self._epoch else None
        if main.starts_again:
            return None
        part = self._part_of(main.at) if self._counters.inner else 0.0
        return min(1.0, (main.at + part) / main.total)

    def _part_of(self, outer_at: int) -> float:
        return self._within[1] if self._within[0] == outer_at else 0.0

    def _note_pace(self, now: float) -> None:
        done = self._fraction()
        if done is None or (self._pace and done < self._pace[-1][1]):
            self._pace.clear()
        if done is not None:
            self._pace.append((now, done))

    def _eta(self, fraction: float | None) -> float | None:
        if fraction is None or not self._pace:
            return None
        if fraction >= 1:
            return 0.0
        last = self._pace[-1][0]
        recent = [p for p in self._pace if last - p[0] <= _PACE_S]
        if len(recent) < 2:
            recent = list(self._pace)[-2:]
        (t0, f0), (t1, f1) = recent[0], recent[-1]
        return round((1 - fraction) * (t1 - t0) / (f1 - f0), 1) if f1 > f0 and t1 > t0 else None


def better_known(reported: dict[str, Any] | None, read: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the progress that the SDK reported, or the one read from the output if only that one has a fraction."""
    if reported is None or (reported["fraction"] is None and read is not None and read["fraction"] is not None):
        return read
    return reported


def _search(pattern: re.Pattern[bytes], line: bytes) -> re.Match[bytes] | None:
    found = pattern.search(line)
    if not found:
        return None
    at, total = _pair(found)
    # Dates and ratios such as 12/07 or 5/3 are not progress.
    return found if 0 < total <= _MAX_TOTAL and at <= total else None


def _numbers(found: re.Match[bytes] | None) -> tuple[int, int] | None:
    return _pair(found) if found else None


def _pair(found: re.Match[bytes]) -> tuple[int, int]:
    return int(found[1]), int(found[2])
