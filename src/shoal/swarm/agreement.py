"""The decision which state is the swarm's: in the newest round that a quorum has reached, the state most peers hold. Pure.

One peer alone moves nobody, except in a swarm of two. Peers that cannot be downloaded from count as witnesses of a state,
but a state that only they hold is never chosen: the others could not get it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from shoal.swarm.records import Progress


@dataclass(frozen=True, slots=True)
class Place:
    """Position in a swarm's history. After a rollback the round number falls back, but the place is still newer."""

    rollbacks: int
    round: int

    @property
    def epoch(self) -> int:
        """The place as one increasing number, for hivemind."""
        return (self.rollbacks << 32) + self.round

    @classmethod
    def at(cls, epoch: int) -> Place:
        """Return the place of an epoch number."""
        return cls(epoch >> 32, epoch & 0xFFFFFFFF)

    @classmethod
    def of(cls, record: Progress) -> Place:
        """Return the place of a peer's record."""
        return cls(record.rollbacks, record.round)


@dataclass(frozen=True, slots=True)
class Agreed:
    """The state that the swarm has agreed on."""

    place: Place
    hash: str
    holders: tuple[Progress, ...]
    """Records of the peers that hold it, those that serve downloads first."""


def quorum(peers: int) -> int:
    """Return how many peers must have reached a place before the others follow: more than a third."""
    return peers // 3 + 1


def agreed(records: Iterable[Progress], *, besides: int = 0) -> Agreed | None:
    """Return the state the swarm has agreed on; None if no record names a state.

    The result depends on the records only: peers that see the same records choose the same state. `besides` is the number
    of peers that count for the quorum though their records are not among these.
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
    # A completely averaged round wins over a partial one. The hash breaks ties: any rule works if all peers use the same.
    found = min(by_hash, key=lambda h: (-len(by_hash[h]), -max(r.averaged for r in by_hash[h]), h))
    holders = sorted(by_hash[found], key=lambda record: (not record.serves_state, record.peer))
    return Agreed(newest, found, tuple(holders))


def vouched(state_hash: str, records: Iterable[Progress], *, besides: int = 0) -> Place | None:
    """Return the place of a state that a quorum holds or held recently; None if too few peers vouch for it."""
    known = _known(records)
    epochs = Counter(record.recent[state_hash] for record in known if state_hash in record.recent)
    if not epochs:
        return None
    epoch, sayers = max(epochs.items(), key=lambda found: (found[1], found[0]))
    return Place.at(epoch) if sayers >= min(quorum(len(known) + besides), len(_givers(known))) else None


def is_astray(own: Progress, goal: Agreed, others: Sequence[Progress]) -> bool:
    """Check whether a peer that is ahead of the goal has to return to it.

    It has to if its history is not the others' (they have never held its state, nor it theirs) and either a quorum holds
    the goal or the others cannot download this peer's state.
    """
    is_known = any(own.state_hash in record.recent for record in others) or goal.hash in own.recent
    are_many = len(goal.holders) >= quorum(len(others) + 1)
    return not is_known and (are_many or not own.serves_state)


def count_beside(
    place: Place, state_hash: str, before: Iterable[str], records: Iterable[Progress], *, within_s: float, lag_s: float
) -> int:
    """Return how many peers are in this round or about to enter it.

    Counted are peers that reported this state within `within_s`, and peers that reported a state of `before`, one round
    earlier, within `lag_s`: their next report is on its way. A peer that died in an earlier round is not waited for.
    """
    now, earlier = time.time(), set(before)

    def is_beside(record: Progress) -> bool:
        if Place.of(record) == place:
            return record.state != "leaving" and record.state_hash == state_hash and now - record.time < within_s
        return is_about_to_follow(record, place, earlier) and now - record.time < lag_s

    return sum(map(is_beside, records))


def is_about_to_follow(record: Progress, place: Place, before: Container[str]) -> bool:
    """Check whether a peer's last report was one round behind this place, with one of the states `before` it."""
    is_behind = Place.of(record).epoch == place.epoch - 1 and record.state_hash in before
    return is_behind and record.state != "leaving"


def _known(records: Iterable[Progress]) -> list[Progress]:
    return [record for record in records if record.state_hash is not None and record.state != "leaving"]


def _givers(known: list[Progress]) -> list[Progress]:
    """Return the records of peers that serve downloads; all records if none does."""
    return [record for record in known if record.serves_state] or known
