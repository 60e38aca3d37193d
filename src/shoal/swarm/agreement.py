"""Which state the swarm holds, out of what its peers say: the newest round some of them have, there the one most have. Pure.

What a single peer says it holds moves nobody but where there are only two.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.swarm.records import Progress


@dataclass(frozen=True, slots=True)
class Place:
    """A point in the life of a swarm. After a rollback rounds count on from an earlier one, and are newer all the same."""

    rollbacks: int
    round: int

    @property
    def epoch(self) -> int:
        """The same order in one number, for hivemind."""
        return (self.rollbacks << 32) + self.round

    @classmethod
    def at(cls, epoch: int) -> Place:
        return cls(epoch >> 32, epoch & 0xFFFFFFFF)

    @classmethod
    def of(cls, record: Progress) -> Place:
        return cls(record.rollbacks, record.round)


@dataclass(frozen=True, slots=True)
class Agreed:
    place: Place
    hash: str
    holders: tuple[Progress, ...]
    """Those who have it, the ones that others can download from first."""


def quorum(peers: int) -> int:
    """How many must be at a place before the others follow: more than a third."""
    return peers // 3 + 1


def agreed(records: Iterable[Progress], *, besides: int = 0) -> Agreed | None:
    """None where nobody has said what it holds. Whoever sees the same records comes to the same result.

    `besides`: peers that count, though their records are not among these.
    """
    known = [record for record in records if record.state_hash is not None and record.state != "leaving"]
    if not known:
        return None
    places = sorted((Place.of(record) for record in known), key=lambda place: place.epoch, reverse=True)
    newest = places[min(quorum(len(known) + besides), len(known)) - 1]
    by_hash: dict[str, list[Progress]] = {}
    for record in known:
        if Place.of(record) == newest and record.state_hash is not None:
            by_hash.setdefault(record.state_hash, []).append(record)
    # A round everybody had whole beats one that was cut off; between equals, any rule will do that all follow.
    found = min(by_hash, key=lambda h: (-len(by_hash[h]), -max(r.averaged for r in by_hash[h]), h))
    holders = sorted(by_hash[found], key=lambda record: (not record.serves_state, record.peer))
    return Agreed(newest, found, tuple(holders))


def vouched(state_hash: str, records: Iterable[Progress], *, besides: int = 0) -> Place | None:
    """Where a state belongs that as many hold, or held a moment ago, as it takes to follow them; None: it may be anybody's."""
    known = [record for record in records if record.state_hash is not None and record.state != "leaving"]
    epochs = Counter(record.recent[state_hash] for record in known if state_hash in record.recent)
    if not epochs:
        return None
    epoch, sayers = max(epochs.items(), key=lambda found: (found[1], found[0]))
    return Place.at(epoch) if sayers >= min(quorum(len(known) + besides), len(known)) else None


def count_at(place: Place, records: Iterable[Progress], *, within_s: float) -> int:
    """Peers that said not long ago that they are at this place. Who died at an earlier one is not waited for."""
    now = time.time()
    return sum(Place.of(r) == place and r.state != "leaving" and now - r.time < within_s for r in records)
