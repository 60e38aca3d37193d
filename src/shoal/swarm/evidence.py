"""Evidence against peers over several rounds, and the work that earns credit. Pure: finished rounds in, decisions out.

Every peer that reduces a share of the parameters sees the others' parts and reports outliers in its signed record. A report
is a claim, not a proof. Therefore a peer is guilty only if, in several rounds, most peers that judged it reported it, and if
these were more peers than a minority can provide. Peers without accepted work have no vote: a person who joins under many
names must do as much honest work as the others before these names count.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.swarm.agreement import quorum
from shoal.swarm.averaging.robust import HEAVY, middle
from shoal.swarm.records import Progress

WINDOW = 5
"""Number of a peer's last rounds whose reports count. Rounds in which nobody judged it do not count for or against it."""
ROUNDS = 3
"""Rounds of these in which a peer must have been reported to be guilty."""
VETTED = 2
"""Rounds of accepted work after which a peer's reports count."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Reports of one round against one peer."""

    round: int
    by: tuple[str, ...]
    """Peers that reported it."""
    of: int
    """Number of peers that judged it."""

    def facts(self) -> dict[str, Any]:
        """Return the mark as JSON."""
        return {"round": self.round, "by": list(self.by), "of": self.of}


class Evidence:
    """Marks of the last rounds, by peer, and the rounds of accepted work."""

    def __init__(self) -> None:
        self._judged: dict[str, deque[Mark | None]] = {}
        """Peer → its last judged rounds: a mark if most reported it, else None."""
        self._worked: Counter[str] = Counter()
        self._owners: dict[str, str] = {}
        """p2p id → peer that was first to use it. A peer that claims another's id does not inherit its marks, nor give it its own."""

    def add(self, round_: int, reports: Sequence[Progress], records: Mapping[str, Progress]) -> list[str]:
        """Add the reports of a finished round; return the peers that are reported for the first time in `WINDOW` rounds."""
        self._learn_owners(records)
        judged = self._judge(round_, reports)
        marked = [peer for peer, mark in judged.items() if mark is not None]
        for peer, samples in accepted(reports, marked).items():
            self._worked[peer] += samples > 0
        new = [peer for peer in marked if not self.marks(peer)]
        for peer, mark in judged.items():
            self._judged.setdefault(peer, deque(maxlen=WINDOW)).append(mark)
        return sorted(new)

    def marks(self, peer: str) -> list[Mark]:
        """Return the marks of a peer in its last `WINDOW` judged rounds."""
        return [mark for mark in self._judged.get(peer, ()) if mark is not None]

    def guilty(self, records: Mapping[str, Progress]) -> dict[str, list[Mark]]:
        """Return peer → marks of the present peers with enough evidence against them; nobody if they were half of the swarm."""
        found = {}
        for peer in sorted(records):
            marks, others = self.marks(peer), len(records) - 1
            accusers = {accuser for mark in marks for accuser in mark.by}
            if len(marks) >= ROUNDS and len(accusers) >= max(quorum(others), min(2, others)):
                found[peer] = marks
        return found if 2 * len(found) < len(records) else {}

    def credit(self, round_: int, reports: Sequence[Progress]) -> dict[str, int]:
        """Return peer → samples of a finished round that count as its contribution."""
        return accepted(reports, [p for p in self._judged if any(mark.round == round_ for mark in self.marks(p))])

    def forget(self) -> None:
        """Forget all marks, after a rollback: the rounds begin again, and their numbers repeat."""
        self._judged.clear()

    def _judge(self, round_: int, reports: Sequence[Progress]) -> dict[str, Mark | None]:
        """Return the judged peers of one round: with a mark if most of their judges reported them, else with None."""
        vetted = self._voters(reports)
        seen = {p2p for record in vetted for p2p in [*record.odd, *record.members]}
        found: dict[str, Mark | None] = {}
        for p2p in sorted(seen):
            if (peer := self._owners.get(p2p)) is None:
                continue
            by = sorted(record.peer for record in vetted if p2p in record.odd and record.peer != peer)
            judges = [
                r for r in vetted if r.peer != peer and (p2p in r.odd or (r.judged is not False and p2p in r.members))
            ]
            if judges:
                found[peer] = Mark(round_, tuple(by), len(judges)) if 2 * len(by) > len(judges) else None
        return found

    def _voters(self, reports: Sequence[Progress]) -> list[Progress]:
        """Return the records whose reports count; all of them while no peer has enough accepted work."""
        vetted = [record for record in reports if self._worked[record.peer] >= VETTED]
        return vetted or list(reports)

    def _learn_owners(self, records: Mapping[str, Progress]) -> None:
        for peer in sorted(records):
            self._owners.setdefault(records[peer].p2p, peer)


def accepted(reports: Sequence[Progress], marked: Iterable[str]) -> dict[str, int]:
    """Return peer → accepted samples of a round.

    Claims count up to the weight that the average gives them. A peer earns nothing if it was reported by most, or if no
    other peer averaged with it although others did average.
    """
    claims = [record.samples for record in reports if record.samples]
    most, barred = int(HEAVY * middle(list(map(float, claims)))) if claims else 0, set(marked)
    by_others = [(record.peer, set(record.members)) for record in reports if len(record.members) > 1]
    found = {}
    for record in reports:
        others = [members for peer, members in by_others if peer != record.peer]
        is_there = not others or any(record.p2p in members for members in others)
        found[record.peer] = min(record.samples, most) if is_there and record.peer not in barred else 0
    return found
