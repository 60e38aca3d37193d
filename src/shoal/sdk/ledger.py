"""The ledger: which samples each step used, in a line per fifty steps, and the audit that recomputes it.

Standard library only: the audit also runs where there is no torch. Every process start is a *session* that goes on from a
step; what earlier sessions did beyond that step is superseded.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.sdk.order import Dealing, crc_of, epoch_order

_STEPS, _SECONDS = 50, 5.0


class Ledger:
    """Of one feed on one rank. Batches are added as they are consumed, and put to a step when it is made."""

    def __init__(self, write: Callable[..., None], *, name: str, session: str, rank: int, world: int):
        self._write, self._name, self._session = write, name, session
        self._rank, self._world = rank, world
        self._taken: list[tuple[int, int, list[int]]] = []
        self._line: dict[str, Any] | None = None
        self._since = 0.0

    def took(self, epoch: int, batch: int, indices: list[int]) -> None:
        self._taken.append((epoch, batch, indices))

    def forget(self) -> None:
        """A pass without steps: nobody trained on it."""
        self._taken.clear()

    def step(self, step: int) -> None:
        """What was taken since the last step was used in this one."""
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
        """Always before a checkpoint: a line never reaches over one, so it is superseded whole or not at all."""
        if self._line is not None:
            line, self._line = self._line, None
            self._write("l", name=self._name, **line, r=[self._rank, self._world], x=self._session)


@dataclass(slots=True)
class Report:
    """The outcome of an audit."""

    ok: bool = True
    difference: str | None = None
    """The first thing that is not as it should be."""
    epochs: int = 0
    """Epochs that were finished, over all data sets."""
    samples: int = 0
    """Samples used, without what was superseded."""
    sessions: int = 0
    superseded: int = 0
    """Ledger lines that a resume made void."""
    notes: list[str] = field(default_factory=list)

    def differs(self, text: str) -> None:
        if self.ok:
            self.ok, self.difference = False, text


def audit(records: Iterable[Mapping[str, Any]]) -> Report:
    """Whether each sample was used exactly once per finished epoch, in the order (seed, epoch) says, over all attempts.

    Takes the k="d" and k="l" records of all ranks, oldest first within a rank; others are ignored.
    """
    report = Report()
    about: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    lines: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        if record.get("k") == "d":
            about[record["name"]].append(record)
        elif record.get("k") == "l":
            lines[record["name"]].append(record)
    if not lines:
        report.notes.append("there is no ledger: no prepared loader was trained on")
    report.sessions = len({d.get("x") for found in about.values() for d in found})
    steps: list[tuple[int, int]] = []
    for name in sorted(lines):
        if name not in about:
            report.differs(f"{name}: the record that describes the data set is missing")
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
            report.differs(f"{name}: the line of steps {line['i']} reaches over the checkpoint of step {int(bound)}")
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
    """A loop may leave an epoch early, but no step may have used samples that are not told."""
    reached = 0
    for first, last in sorted(steps):
        if first > reached + 1:
            report.differs(f"the samples of steps {reached + 1} to {first - 1} are not in the ledger")
        reached = max(reached, last)


def session_bounds(sessions: list[Mapping[str, Any]]) -> dict[Any, float]:
    """Session → the last of its steps that no later session did again."""
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
        # Killed before all ranks had told of their last steps.
        del seen[last]
    epochs = sorted({epoch for epoch, _ in seen})
    for epoch in epochs:
        used = sorted(batch for e, batch in seen if e == epoch)
        if used != list(range(len(used))):
            gap = next(i for i, batch in enumerate(used) if i != batch)
            report.differs(f"{name}: batch {gap} of epoch {epoch} was not used")
        for batch in used:
            if not _is_whole(ranks := seen[epoch, batch]):
                lacking = sorted(set(range(max(ranks.values()))) - set(ranks))
                report.differs(f"{name}: batch {batch} of epoch {epoch} lacks the shares of ranks {lacking}")
            low, high = dealing.span(batch)
            report.samples += high - low
        if len(used) == dealing.batches:
            report.epochs += 1
        elif epoch != epochs[-1]:
            report.notes.append(f"{name}: epoch {epoch} was left after {len(used)} of {dealing.batches} batches")


def _is_whole(ranks: Mapping[int, int]) -> bool:
    """Rank → world size: whether all ranks of one world are there."""
    return len(set(ranks.values())) == 1 and sorted(ranks) == list(range(next(iter(ranks.values()))))


def _dealing(about: Mapping[str, Any], world: int) -> Dealing:
    batch = int(about["batch"])
    return Dealing(
        size=int(about["size"]), global_batch=batch, batch_size=batch, world=world, drop_last=bool(about["drop_last"])
    )
