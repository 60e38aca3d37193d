"""Sample log: which samples each step used, one line per fifty steps, and the audit that recomputes it.

Standard library only: the audit also runs where torch is not installed. Every process start is a *session* that continues
from a step; lines of earlier sessions beyond that step are superseded.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.core.records import Kind, Samples
from shoal.sdk.samples.order import Dealing, crc_of, epoch_order

_STEPS, _SECONDS = 50, 5.0


class SampleLog:
    """Sample log of one feed on one rank. Batches are added when fetched, and assigned to a step when it is made."""

    def __init__(self, put: Callable[[Samples], None], *, name: str, session: str, rank: int, world: int):
        self._put, self._name, self._session = put, name, session
        self._rank, self._world = rank, world
        self._taken: list[tuple[int, int, list[int]]] = []
        self._line: dict[str, Any] | None = None
        self._since = 0.0

    def add(self, epoch: int, batch: int, indices: list[int]) -> None:
        self._taken.append((epoch, batch, indices))

    def forget(self) -> None:
        """Drop the fetched batches after a pass without steps: they were not trained on."""
        self._taken.clear()

    def step(self, step: int) -> None:
        """Assign the batches fetched since the last step to this one."""
        for epoch, batch, indices in self._taken:
            line = self._line
            if line is not None and (line["e"] != epoch or batch not in (line["p"][1], line["p"][1] - 1)):
                self.flush()
                line = None
            if line is None:
                line = self._line = {"e": epoch, "i": [step, step], "p": [batch, batch], "c": 0}
                self._since = time.monotonic()
            line["i"][1], line["p"][1] = step, batch + 1
            line["c"] = crc_of(indices, line["c"])
        self._taken.clear()
        line = self._line
        if line is None:
            return
        if line["i"][1] - line["i"][0] >= _STEPS - 1 or time.monotonic() - self._since >= _SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the current line. Called before every checkpoint, so that a line is superseded entirely or not at all."""
        if self._line is not None:
            line, self._line = self._line, None
            told = {"name": self._name, **line, "r": [self._rank, self._world], "x": self._session}
            self._put(Samples.decode(told))


@dataclass(slots=True)
class Report:
    """Result of an audit."""

    ok: bool = True
    difference: str | None = None
    """Description of the first error, or None."""
    epochs: int = 0
    """Number of finished epochs, over all datasets."""
    samples: int = 0
    """Number of samples used, without superseded lines."""
    sessions: int = 0
    superseded: int = 0
    """Number of lines that a resume superseded."""
    notes: list[str] = field(default_factory=list)

    def differs(self, text: str) -> None:
        if self.ok:
            self.ok, self.difference = False, text


def audit(records: Iterable[Mapping[str, Any]]) -> Report:
    """Check that each sample was used exactly once per finished epoch, in the order of (seed, epoch), over all attempts.

    Args:
        records: The k="d" and k="l" records of all ranks, oldest first within a rank; others are ignored.
    """
    report = Report()
    about: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    lines: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        if record.get("k") == Kind.DATA:
            about[record["name"]].append(record)
        elif record.get("k") == Kind.SAMPLES:
            lines[record["name"]].append(record)
    if not lines:
        report.notes.append("there is no sample log: no prepared loader was used for training")
    report.sessions = len({d.get("x") for found in about.values() for d in found})
    steps: list[tuple[int, int]] = []
    for name in sorted(lines):
        if name not in about:
            report.differs(f"{name}: the record that describes the dataset is missing")
            continue
        _audit_one(name, sorted(about[name], key=lambda d: float(d.get("t", 0))), lines[name], report, steps)
    _check_steps(steps, report)
    return report


def _audit_one(
    name: str,
    sessions: list[Mapping[str, Any]],
    lines: list[Mapping[str, Any]],
    report: Report,
    steps: list[tuple[int, int]],
) -> None:
    bounds = session_bounds(sessions)
    kept: list[Mapping[str, Any]] = []
    for line in lines:
        bound = bounds.get(line.get("x"))
        if bound is None:
            report.differs(f"{name}: steps {line['i']} belong to a session that is not described")
        elif line["i"][0] > bound:
            report.superseded += 1
        elif line["i"][1] > bound:
            report.differs(f"{name}: the line of steps {line['i']} extends beyond the checkpoint of step {int(bound)}")
        else:
            kept.append(line)
            steps.append((line["i"][0], line["i"][1]))
    last = sessions[-1]
    seen: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    orders: dict[int, Any] = {}
    for line in sorted(kept, key=lambda found: (found["e"], found["i"])):
        epoch = int(line["e"])
        if epoch not in orders:
            orders = {epoch: epoch_order(last["size"], last["seed"], epoch, shuffle=last.get("shuffle", True))}
        _check_line(name, last, line, orders[epoch], seen, report)
    _check_cover(name, last, seen, report)


def _check_steps(steps: list[tuple[int, int]], report: Report) -> None:
    """Check that the samples of every step are in the log. A loop may leave an epoch early."""
    reached = 0
    for first, last in sorted(steps):
        if first > reached + 1:
            report.differs(f"the samples of steps {reached + 1} to {first - 1} are not in the sample log")
        reached = max(reached, last)


def session_bounds(sessions: list[Mapping[str, Any]]) -> dict[Any, float]:
    """Return for each session its last step that no later session repeated."""
    bounds: dict[Any, float] = {}
    lowest = float("inf")
    for session in reversed(sessions):
        bounds.setdefault(session.get("x"), lowest)
        lowest = min(lowest, float(session.get("from", 0)))
    return bounds


def _check_line(
    name: str,
    about: Mapping[str, Any],
    line: Mapping[str, Any],
    order: Any,
    seen: dict[tuple[int, int], dict[int, int]],
    report: Report,
) -> None:
    rank, world = line["r"]
    dealing = _dealing(about, world)
    crc, epoch = 0, int(line["e"])
    for batch in range(*line["p"]):
        if batch >= dealing.batches:
            report.differs(f"{name}: epoch {epoch} has no batch {batch}")
            return
        crc = crc_of(order.part(*dealing.share(batch, rank)), crc)
        ranks = seen[epoch, batch]
        if rank in ranks:
            report.differs(f"{name}: batch {batch} of epoch {epoch} was used twice by rank {rank} of {world}")
        ranks[rank] = world
    if crc != line["c"]:
        where = f"batches {line['p'][0]} to {line['p'][1] - 1} of epoch {epoch}, steps {line['i'][0]} to {line['i'][1]}"
        report.differs(f"{name}: rank {rank} of {world} used other samples than its share in {where}")


def _check_cover(
    name: str, about: Mapping[str, Any], seen: dict[tuple[int, int], dict[int, int]], report: Report
) -> None:
    dealing = _dealing(about, 1)
    while seen and not _is_whole(seen[last := max(seen)]):
        # The run was killed before all ranks had logged their last steps.
        del seen[last]
    epochs = sorted({epoch for epoch, _ in seen})
    for epoch in epochs:
        used = sorted(batch for e, batch in seen if e == epoch)
        if used != list(range(len(used))):
            gap = next(i for i, batch in enumerate(used) if i != batch)
            report.differs(f"{name}: batch {gap} of epoch {epoch} was not used")
        for batch in used:
            if not _is_whole(ranks := seen[epoch, batch]):
                missing = sorted(set(range(max(ranks.values()))) - set(ranks))
                report.differs(f"{name}: the shares of ranks {missing} of batch {batch} of epoch {epoch} are missing")
            low, high = dealing.span(batch)
            report.samples += high - low
        if len(used) == dealing.batches:
            report.epochs += 1
        elif epoch != epochs[-1]:
            report.notes.append(f"{name}: epoch {epoch} was left after {len(used)} of {dealing.batches} batches")


def _is_whole(ranks: Mapping[int, int]) -> bool:
    """Check whether all ranks of one world are present, given rank → world size."""
    return len(set(ranks.values())) == 1 and sorted(ranks) == list(range(next(iter(ranks.values()))))


def _dealing(about: Mapping[str, Any], world: int) -> Dealing:
    batch = int(about["batch"])
    return Dealing(
        size=int(about["size"]), global_batch=batch, batch_size=batch, world=world, drop_last=bool(about["drop_last"])
    )
