"""How long a job like those before it would take: pure. Every figure comes from a measured one, or is a bound and says so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.billing import Basis

_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A job that ran, to its end or not."""

    name: str
    entry: tuple[str, ...]
    nodes: int
    accels: int
    setup_s: float
    """From getting its slots to its first line."""
    ran_s: float
    done: int | None
    """Steps."""
    total: int | None
    """Steps it was to make."""
    paces: tuple[float, ...] = ()
    """Steps a second, of several stretches, slowest first."""
    complete: bool = True
    same_code: bool = True

    @property
    def slots(self) -> int:
        return self.nodes * self.accels

    def seconds(self, steps: int | None, *, same: bool) -> tuple[list[float], Basis] | None:
        """How long it takes for so many steps; None if nothing can be said."""
        if self.complete and (same if steps is None or self.total is None else steps == self.total):
            return [self.setup_s + self.ran_s], "measured"
        if steps is None or not self.paces or not self.done:
            return None
        usual = self.paces[len(self.paces) // 2]
        besides = max(0.0, self.ran_s - self.done / usual)
        return [self.setup_s + besides + steps / pace for pace in self.paces if pace > 0], "scaled"


@dataclass(frozen=True, slots=True)
class Estimate:
    low_s: float
    high_s: float | None
    basis: Basis
    jobs: tuple[str, ...]


def shape(entry: Sequence[str]) -> tuple[str, frozenset[str], int]:
    """The script, the names of its options, and how many arguments stand by themselves."""
    options, bare = _arguments(entry)
    return entry[0].removeprefix("./") if entry else "", frozenset(options), len(bare)


def steps_of(entry: Sequence[str], past: Sequence[Past]) -> tuple[int | None, str | None]:
    """How many steps the job will make, and how that is known."""
    told = [p for p in past if p.total]
    if same := [p for p in told if p.entry == tuple(entry)]:
        return same[0].total, None
    wanted = _arguments(entry)[0]
    for name, value in wanted.items():
        if told and value.isdecimal() and all(_arguments(p.entry)[0].get(name) == str(p.total) for p in told):
            return int(value), f"{name} is taken for the number of steps, which it was in {told[0].name}"
    totals = {p.total for p in told}
    if len(totals) == 1 and len(told) > 1:
        return totals.pop(), f"all {len(told)} jobs like it made as many steps, whatever their arguments"
    return None, None


def estimate(entry: Sequence[str], size: tuple[int, int], past: Sequence[Past], steps: int | None) -> Estimate | None:
    """At (nodes, accels): from jobs of that size, or else bounds from those of the nearest."""
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
    if factor == 1:  # as many slots, otherwise spread
        return Estimate(known.low_s, None, "bound", known.jobs)
    if factor > 1:
        return Estimate(known.low_s / factor, None, "bound", known.jobs)
    return Estimate(known.low_s, (known.high_s or known.low_s) / factor, "bound", known.jobs)


def sizes(asked: tuple[int, int], past: Sequence[Past], machines: Sequence[int]) -> list[tuple[int, int]]:
    """The one asked for, twice and four times as much where the machines could run it, and those that were run before."""
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
    """What was measured at this very length goes before what has to be scaled."""
    basis: Basis = "measured" if any(b == "measured" for _, _, b in found) else "scaled"
    used = [(job, seconds) for job, seconds, b in found if b == basis]
    every = [s for _, seconds in used for s in seconds]
    return Estimate(min(every), max(every), basis, tuple(job.name for job, _ in used))


def _arguments(entry: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options with their values ('' for those without), and the words that belong to none."""
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
