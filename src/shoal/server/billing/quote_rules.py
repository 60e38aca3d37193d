"""Estimates of how long a job takes, from similar earlier jobs.

Pure; every figure is measured, scaled, or marked as a bound.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.billing import Basis

_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Earlier job that ran, to its end or not."""

    name: str
    entry: tuple[str, ...]
    nodes: int
    accels: int
    setup_s: float
    """Seconds from getting its slots until it was running, summed over its attempts."""
    ran_s: float
    done: int | None
    """Steps made."""
    total: int | None
    """Steps planned."""
    paces: tuple[float, ...] = ()
    """Steps per second in several parts of the run, slowest first."""
    complete: bool = True
    same_code: bool = True

    @property
    def slots(self) -> int:
        return self.nodes * self.accels

    def seconds(self, steps: int | None, *, same: bool) -> tuple[list[float], Basis] | None:
        """Return the seconds for so many steps, at each of its paces, and how they are known; None if they are unknown.

        `same`: the new job has the same arguments.
        """
        if self.complete and (same if steps is None or self.total is None else steps == self.total):
            return [self.setup_s + self.ran_s], "measured"
        if steps is None or not self.paces or not self.done:
            return None
        usual = self.paces[len(self.paces) // 2]
        besides = max(0.0, self.ran_s - self.done / usual)
        return [self.setup_s + besides + steps / pace for pace in self.paces if pace > 0], "scaled"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated duration at one size, and the jobs it is based on."""

    low_s: float
    high_s: float | None
    basis: Basis
    jobs: tuple[str, ...]


def shape(entry: Sequence[str]) -> tuple[str, frozenset[str], int]:
    """Return the script, the names of its options and the number of positional arguments."""
    options, bare = _arguments(entry)
    return entry[0].removeprefix("./") if entry else "", frozenset(options), len(bare)


def is_similar(entry: Sequence[str], other: Sequence[str], most: int = 2) -> bool:
    """Check whether two command lines run the same script and differ in no more than `most` options and no positional argument."""
    (script, options, bare), (other_script, others, other_bare) = shape(entry), shape(other)
    return script == other_script and bare == other_bare and len(options ^ others) <= most


def steps_of(entry: Sequence[str], past: Sequence[Past]) -> tuple[int | None, str | None]:
    """Return the number of steps the job will make, or None, and a sentence about how it is known, if that is a guess."""
    told = [p for p in past if p.total]
    if same := [p for p in told if p.entry == tuple(entry)]:
        return same[0].total, None
    wanted = _arguments(entry)[0]
    for name, value in wanted.items():
        if told and value.isdecimal() and all(_arguments(p.entry)[0].get(name) == str(p.total) for p in told):
            return int(value), f"{name} is assumed to be the number of steps, as in {told[0].name}"
    totals = {p.total for p in told}
    if len(totals) == 1 and len(told) > 1:
        return totals.pop(), f"all {len(told)} similar jobs made the same number of steps, whatever their arguments"
    return None, None


def estimate(entry: Sequence[str], size: tuple[int, int], past: Sequence[Past], steps: int | None) -> Estimate | None:
    """Estimate the duration at a size (nodes, accels): from jobs of that size, else bounds from those of the nearest size."""
    by_size: dict[tuple[int, int], list[tuple[Past, list[float], Basis]]] = {}
    for job in past:
        if (found := job.seconds(steps, same=job.entry == tuple(entry))) is not None:
            by_size.setdefault((job.nodes, job.accels), []).append((job, *found))
    if size in by_size:
        return _range(by_size[size])
    slots = size[0] * size[1]
    near = min(by_size, key=lambda s: (abs(s[0] * s[1] - slots), s), default=None)
    if near is None:
        return None
    known, factor = _range(by_size[near]), slots / (near[0] * near[1])
    if factor == 1:  # the same number of slots on another number of nodes
        return Estimate(known.low_s, None, "bound", known.jobs)
    if factor > 1:
        return Estimate(known.low_s / factor, None, "bound", known.jobs)
    return Estimate(known.low_s, (known.high_s or known.low_s) / factor, "bound", known.jobs)


def sizes(asked: tuple[int, int], past: Sequence[Past], machines: Sequence[int]) -> list[tuple[int, int]]:
    """Return the sizes to quote: the requested one, two and four times it if the machines can run that, and earlier ones."""
    found = [asked]
    for factor in (2, 4):
        nodes, accels = asked
        wider = (nodes, accels * factor)
        found += [size for size in (wider, (nodes * factor, accels)) if _could_run(size, machines)][:1]
    measured = sorted({(p.nodes, p.accels) for p in past if _could_run((p.nodes, p.accels), machines)})
    return list(dict.fromkeys([*found, *measured]))[:8]


def _could_run(size: tuple[int, int], machines: Sequence[int]) -> bool:
    return sum(slots // size[1] for slots in machines) >= size[0]


def _range(found: list[tuple[Past, list[float], Basis]]) -> Estimate:
    """Return the range of the measured durations; of the scaled ones if none was measured."""
    basis: Basis = "measured" if any(b == "measured" for _, _, b in found) else "scaled"
    used = [(job, seconds) for job, seconds, b in found if b == basis]
    every = [s for _, seconds in used for s in seconds]
    return Estimate(min(every), max(every), basis, tuple(job.name for job, _ in used))


def _arguments(entry: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options with their values ('' for those without) and the positional arguments."""
    options: dict[str, str] = {}
    bare, last = list[str](), None
    for word in entry[1:]:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            name, equals, value = word.partition("=")
            options[name] = value
            last = None if equals else name
        elif last is not None:
            options[last], last = word, None
        else:
            bare.append(word)
    return options, bare
