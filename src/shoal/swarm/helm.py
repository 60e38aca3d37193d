"""What the owner orders the swarm: who is in it, and when it goes back to a round that was good. Decides only.

The keeper signs and publishes what stands here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shoal.swarm.agreement import Place, agreed
from shoal.swarm.loss_watch import LossWatch
from shoal.swarm.monitor import Settled, typical_loss
from shoal.swarm.records import Order, Progress, Rollback

REACH = 5
"""Rounds that peers themselves can go back; beyond, they need a checkpoint of the keeper's."""
TRIES = 3
"""Rollbacks to one and the same round before the swarm is stopped."""
PATIENCE = 3
"""Rounds in a row in which most peers must complain of one before it is sent away."""

_REMEMBERED = 100


class Helm:
    def __init__(self, *, members: Mapping[str, str], banned: Iterable[str], clock: Callable[[], float]):
        self._members, self._banned, self._clock = dict(members), set(banned), clock
        self._watch = LossWatch()
        self._hashes: dict[Place, str] = {}
        self._saved: dict[int, str] = {}
        self._tries: Counter[int] = Counter()
        self._complaints: Counter[str] = Counter()
        self._recent: deque[tuple[Progress, ...]] = deque(maxlen=PATIENCE)
        self._aggregation: Any = None
        self._rollback: Rollback | None = None
        self._stop = False
        self.is_new = True
        """Whether the order differs from the last one taken."""

    def take_order(self) -> Order:
        self.is_new = False
        return Order(
            version=int(self._clock() * 1000),  # grows also over a restart of the keeper
            members=self._members,
            banned=sorted(self._banned),
            aggregation=self._aggregation,
            rollback=self._rollback,
            stop=self._stop,
        )

    def stop(self) -> None:
        self._stop = self.is_new = True

    def set_members(self, members: Mapping[str, str], banned: Iterable[str]) -> None:
        self._members, self._banned, self.is_new = dict(members), set(banned), True

    def kick(self, peer: str, reason: str) -> list[dict[str, Any]]:
        if peer in self._banned:
            return []
        self._banned.add(peer)
        self.is_new = True
        return [{"event": "kicked", "peer": peer, "reason": reason}]

    def saved(self, round_: int, hash_: str) -> None:
        """There is a checkpoint of this round."""
        self._saved[round_] = hash_

    def see(self, records: Mapping[str, Progress]) -> None:
        """Remember which state the swarm agreed on, round by round."""
        goal = agreed(records.values())
        if goal is not None:
            self._hashes[goal.place] = goal.hash
            while len(self._hashes) > _REMEMBERED:
                del self._hashes[next(iter(self._hashes))]

    def judge(self, settled: Settled, records: Mapping[str, Progress]) -> list[dict[str, Any]]:
        """Of a round's losses: events, and perhaps a new order."""
        place, loss = settled.place, typical_loss(settled.records)
        back = self._rollback
        if loss is None or (back is not None and place.epoch <= Place(back.number, back.to_round).epoch):
            return []  # on its way back, or just there: the losses are still those of before
        self._recent.append(settled.records)
        events = self._send_away(settled.records, records)
        if self._watch.feed(loss, place.round - 1) == "ok":
            return events
        return events + self._roll_back(settled, records, f"the loss rose to {loss:.4g}")

    def _send_away(self, told: tuple[Progress, ...], records: Mapping[str, Progress]) -> list[dict[str, Any]]:
        votes = _votes(told)
        named = {p2p for p2p, count in votes.items() if 2 * count > len(told)}
        self._complaints = Counter({p2p: self._complaints[p2p] + 1 for p2p in named})
        enough = [p2p for p2p, rounds in self._complaints.items() if rounds >= PATIENCE]
        reason = f"what it sent stood out from the others' in {PATIENCE} rounds"
        return [event for peer in _minority(enough, records) for event in self.kick(peer, reason)]

    def _roll_back(self, settled: Settled, records: Mapping[str, Progress], reason: str) -> list[dict[str, Any]]:
        goal = self._goal(settled.place)
        if goal is None:
            return []
        to_round, hash_ = goal
        self._tries[to_round] += 1
        if self._tries[to_round] > TRIES:
            self.stop()
            again = f"{reason} for the {self._tries[to_round]}th time; the swarm stops, look at the data and the learning rate"
            return [{"event": "rollback", "to_round": to_round, "reason": again}]
        events = [event for peer in _suspects(self._recent, records) for event in self.kick(peer, reason)]
        self._rollback = Rollback(number=settled.place.rollbacks + 1, to_round=to_round, hash=hash_)
        # Whoever it was, and whoever comes next: from here on nobody's update alone decides.
        self._aggregation, self.is_new = "robust", True
        self._watch.rolled_back()
        self._recent.clear()
        return [*events, {"event": "rollback", "to_round": to_round, "reason": reason}]

    def _goal(self, place: Place) -> tuple[int, str] | None:
        """The last good round, if peers still have it; else the last good checkpoint."""
        good = self._watch.good_round
        if good is None:
            return None
        known = {at.round: found for at, found in self._hashes.items() if at.round <= good}
        if good in known and place.round - good <= REACH:
            return good, known[good]
        saved = [(round_, found) for round_, found in self._saved.items() if round_ <= good]
        return max(saved, default=None)


def _suspects(rounds: Iterable[tuple[Progress, ...]], records: Mapping[str, Progress]) -> list[str]:
    """Those most of the complaints of the last rounds are of; who reduces nothing in a round has none."""
    told = tuple(record for round_ in rounds for record in round_ if set(record.odd) - {record.p2p})
    return _minority([p2p for p2p, count in _votes(told).items() if 2 * count > len(told)], records)


def _votes(told: tuple[Progress, ...]) -> Counter[str]:
    return Counter(p2p for record in told for p2p in set(record.odd) - {record.p2p})


def _minority(p2p_ids: list[str], records: Mapping[str, Progress]) -> list[str]:
    """Peers with these ids; nobody, where that would be half of the swarm."""
    found = sorted(record.peer for record in records.values() if record.p2p in p2p_ids)
    return found if 2 * len(found) < len(records) else []
