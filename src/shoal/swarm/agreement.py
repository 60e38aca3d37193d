"""Which state the swarm holds, out of what its peers say: the newest round some of them have, there the one most have. Pure.

What a single peer says it holds moves nobody but where there are only two. Peers that nobody can download from vouch for
states, but theirs is never the swarm's: the others could not follow.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Iterable, Sequence
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
    known = _known(records)
    if not known:
        return None
    givers = _givers(known)
    places = sorted((Place.of(record) for record in givers), key=lambda place: place.epoch, reverse=True)
    newest = places[min(quorum(len(known) + besides), len(givers)) - 1]
    given = {record.state_hash for record in givers}
    by_hash: dict[str, list[Progress]] = {}
    for record in known:
        if Place.of(record) == newest and record.state_hash is not None and record.state_hash in given:
            by_hash.setdefault(record.state_hash, []).append(record)
    # A round everybody had whole beats one that was cut off; between equals, any rule will do that all follow.
    found = min(by_hash, key=lambda h: (-len(by_hash[h]), -max(r.averaged for r in by_hash[h]), h))
    holders = sorted(by_hash[found], key=lambda record: (not record.serves_state, record.peer))
    return Agreed(newest, found, tuple(holders))


def vouched(state_hash: str, records: Iterable[Progress], *, besides: int = 0) -> Place | None:
    """Where a state belongs that as many hold, or held a moment ago, as it takes to follow them; None: it may be anybody's."""
    known = _known(records)
    epochs = Counter(record.recent[state_hash] for record in known if state_hash in record.recent)
    if not epochs:
        return None
    epoch, sayers = max(epochs.items(), key=lambda found: (found[1], found[0]))
    return Place.at(epoch) if sayers >= min(quorum(len(known) + besides), len(_givers(known))) else None


def is_astray(own: Progress, goal: Agreed, others: Sequence[Progress]) -> bool:
    """Whether a peer that is further on than the goal has to go back to it.

    It has, if it went on from something else than the others have (none of them knows what it holds, nor it what they do),
    and they are too many to follow it, or cannot get its state.
    """
    is_known = any(own.state_hash in record.recent for record in others) or goal.hash in own.recent
    are_many = len(goal.holders) >= quorum(len(others) + 1)
    return not is_known and (are_many or not own.serves_state)


def count_beside(
    place: Place, state_hash: str, before: Iterable[str], records: Iterable[Progress], *, within_s: float, lag_s: float
) -> int:
    """Peers that said not long ago that they hold this state, and those that said a moment ago that they hold one `before`
    it, of the last round: their next word is on its way. Who died at an earlier place is not waited for."""
    now, earlier = time.time(), set(before)

    def is_beside(record: Progress) -> bool:
        if Place.of(record) == place:
            return record.state != "leaving" and record.state_hash == state_hash and now - record.time < within_s
        return is_about_to_follow(record, place, earlier) and now - record.time < lag_s

    return sum(map(is_beside, records))


def is_about_to_follow(record: Progress, place: Place, before: Container[str]) -> bool:
    """Whether a peer was a round behind this place by its last word, on the same way: it holds one of the states `before`."""
    is_behind = Place.of(record).epoch == place.epoch - 1 and record.state_hash in before
    return is_behind and record.state != "leaving"


def _known(records: Iterable[Progress]) -> list[Progress]:
    return [record for record in records if record.state_hash is not None and record.state != "leaving"]


def _givers(known: list[Progress]) -> list[Progress]:
    """Those that others can download from; all, where there is none."""
    return [record for record in known if record.serves_state] or known
