"""Samples that each step of a job used, recomputed from its sample log; first step at which two jobs used different ones."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.core.diffs import SampleDifference
from shoal.core.records import Kind
from shoal.sdk.samples.order import Dealing, Order, epoch_order
from shoal.sdk.samples.sample_log import session_bounds

_SHOWN, _MOST_SAMPLES = 8, 4096
_MOST_COMPUTED = 20_000
"""Maximum number of steps whose samples are computed. A job can write any sample log, and it must not cost much time."""


@dataclass(slots=True)
class Feed:
    """One loader of a job, over all its attempts."""

    about: Mapping[str, Any]
    lines: list[Mapping[str, Any]] = field(default_factory=list)
    """Lines of the sample log that count, ordered by step."""
    _orders: dict[int, Order] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts that determine the sample order: with equal facts, equal batches have equal samples."""
        return {key: self.about.get(key) for key in ("seed", "size", "batch", "drop_last", "shuffle")}

    def batch_of(self, step: int) -> tuple[int, int] | None:
        """Return the (epoch, global batch) that a step used; None if it is unknown."""
        at = bisect_right(self.lines, step, key=lambda line: int(line["i"][0])) - 1
        if at < 0 or step > int(self.lines[at]["i"][1]):
            return None
        line = self.lines[at]
        return int(line["e"]), min(int(line["p"][0]) + step - int(line["i"][0]), int(line["p"][1]) - 1)

    def samples(self, epoch: int, batch: int) -> list[int]:
        """Return the first few thousand samples of a global batch."""
        about = self.about
        if epoch not in self._orders:
            shuffle = bool(about.get("shuffle", True))
            self._orders = {epoch: epoch_order(int(about["size"]), int(about["seed"]), epoch, shuffle=shuffle)}
        size = int(about["batch"])
        dealing = Dealing(
            size=int(about["size"]), global_batch=size, batch_size=size, drop_last=bool(about["drop_last"])
        )
        first, end = dealing.span(batch)
        return self._orders[epoch].part(first, min(end, first + _MOST_SAMPLES))


def feeds(records: Iterable[Mapping[str, Any]]) -> dict[str, Feed]:
    """Return loader name → its feed, from the records of rank 0: ranks differ in their share of a batch, not in the batch."""
    sessions: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    lines: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        kind, name = record.get("k"), str(record.get("name"))
        if kind == Kind.DATA:
            sessions[name].append(record)
        elif kind == Kind.SAMPLES and record["r"][0] == 0:
            lines[name].append(record)
    found = {}
    for name, told in sessions.items():
        told.sort(key=lambda d: float(d.get("t", 0)))
        bounds = session_bounds(told)
        counting = [line for line in lines[name] if line["i"][1] <= bounds.get(line.get("x"), -1)]
        found[name] = Feed(told[-1], sorted(counting, key=lambda line: int(line["i"][0])))
    return found


def first_difference(first: Mapping[str, Feed], second: Mapping[str, Feed]) -> SampleDifference | None:
    """Return the first step at which two jobs used different samples, over the loaders that both have; else None."""
    found = [_first(name, first[name], second[name]) for name in sorted(first.keys() & second.keys())]
    return min((f for f in found if f is not None), key=lambda f: f.step, default=None)


def _first(name: str, a: Feed, b: Feed) -> SampleDifference | None:
    alike, left = a.facts == b.facts, _MOST_COMPUTED
    for low, high in _overlaps(a.lines, b.lines):
        if alike and a.batch_of(low) == b.batch_of(low):
            continue
        for step in range(low, min(high, low + left) + 1):
            here, there = a.batch_of(step), b.batch_of(step)
            if here is None or there is None:
                break
            one, other = a.samples(*here), b.samples(*there)
            if one != other:
                return SampleDifference(loader=name, step=step, first=one[:_SHOWN], second=other[:_SHOWN])
        left -= high - low + 1
        if left <= 0:
            return None
    return None


def _overlaps(first: list[Mapping[str, Any]], second: list[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of steps that both logs cover, each within one line of either: within a line, batches are
    consecutive."""
    i = j = 0
    while i < len(first) and j < len(second):
        (low, high), (other_low, other_high) = (map(int, line["i"]) for line in (first[i], second[j]))
        if max(low, other_low) <= min(high, other_high):
            yield max(low, other_low), min(high, other_high)
        if high < other_high:
            i += 1
        else:
            j += 1
