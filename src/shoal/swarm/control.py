"""Decisions of the swarm's owner: the members, kicked peers, rollbacks to a good round and the stop. Decides only.

The coordinator signs and publishes the resulting record.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shoal.swarm.agreement import Place, agreed
from shoal.swarm.evidence import Evidence, Mark
from shoal.swarm.loss_watch import LossWatch
from shoal.swarm.monitor import FinishedRound, typical_loss
from shoal.swarm.records import OwnerCommands, Progress, Rollback

REACH = 5
"""Rounds that peers can go back with their own states; further back they need a checkpoint of the coordinator."""
TRIES = 3
"""Rollbacks to the same round before the swarm is stopped."""
_LOOKS_BACK = 3
"""Rounds whose complaints count when the loss explodes."""

_REMEMBERED = 100
"""Rounds whose agreed hashes are remembered."""


class SwarmControl:
    """The owner's current record, and the rules that change it."""

    def __init__(self, *, members: Mapping[str, str], banned: Iterable[str], clock: Callable[[], float]):
        self._members, self._banned, self._clock = dict(members), set(banned), clock
        self._watch = LossWatch()
        self._hashes: dict[Place, str] = {}
        self._saved: dict[int, str] = {}
        self._tries: Counter[int] = Counter()
        self._evidence = Evidence()
        self._recent: deque[tuple[Progress, ...]] = deque(maxlen=_LOOKS_BACK)
        self._aggregation: Any = None
        self._rollback: Rollback | None = None
        self._stop = False
        self.is_new = True
        """True if the record differs from the one `current_commands` returned last."""

    def current_commands(self) -> OwnerCommands:
        """Return the owner's record and mark it as published."""
        self.is_new = False
        return OwnerCommands(
            version=int(self._clock() * 1000),  # also grows over a restart of the coordinator
            members=self._members,
            banned=sorted(self._banned),
            aggregation=self._aggregation,
            rollback=self._rollback,
            stop=self._stop,
        )

    def stop(self) -> None:
        """Tell all peers to stop."""
        self._stop = self.is_new = True

    def set_members(self, members: Mapping[str, str], banned: Iterable[str]) -> None:
        """Replace the members (peer id → public key) and the banned peers."""
        self._members, self._banned, self.is_new = dict(members), set(banned), True

    def kick(self, peer: str, reason: str, marks: Iterable[Mark] = ()) -> list[dict[str, Any]]:
        """Ban a peer; return the event, with the evidence, or nothing if it was already banned."""
        if peer in self._banned:
            return []
        self._banned.add(peer)
        self.is_new = True
        evidence = [mark.facts() for mark in marks]
        return [{"event": "kicked", "peer": peer, "reason": reason} | ({"evidence": evidence} if evidence else {})]

    def saved(self, round_: int, hash_: str) -> None:
        """Remember that a round has a checkpoint."""
        self._saved[round_] = hash_

    def see(self, records: Mapping[str, Progress]) -> None:
        """Remember which state the swarm has agreed on in each round."""
        goal = agreed(records.values())
        if goal is not None:
            self._hashes[goal.place] = goal.hash
            while len(self._hashes) > _REMEMBERED:
                del self._hashes[next(iter(self._hashes))]

    def judge(self, settled: FinishedRound, records: Mapping[str, Progress]) -> list[dict[str, Any]]:
        """Check a finished round's loss and reports, and change the record accordingly.

        Returns events: reported and kicked peers, and rollbacks.
        """
        place, loss = settled.place, typical_loss(settled.records)
        if loss is None or self._is_undone(place):
            return []  # the swarm is still rolling back: these losses come from before the rollback
        self._recent.append(settled.records)
        events = self._weigh_reports(settled, records)
        if self._watch.feed(loss, place.round - 1) == "ok":
            return events
        return events + self._roll_back(settled, records, f"the loss rose to {loss:.4g}")

    def credit(self, settled: FinishedRound) -> dict[str, int]:
        """Return peer → samples of a finished round that count as its contribution; call it after `judge`."""
        if self._is_undone(settled.place):
            return {}
        return self._evidence.credit(settled.place.round, settled.records)

    def _is_undone(self, place: Place) -> bool:
        back = self._rollback
        return back is not None and place.epoch <= Place(back.number, back.to_round).epoch

    def _weigh_reports(self, settled: FinishedRound, records: Mapping[str, Progress]) -> list[dict[str, Any]]:
        round_, evidence = settled.place.round, self._evidence
        events: list[dict[str, Any]] = []
        for peer in evidence.add(round_, settled.records, records):
            events.append({"event": "reported", "peer": peer, **evidence.marks(peer)[-1].facts()})
        for peer, marks in evidence.guilty(records).items():
            rounds = ", ".join(str(mark.round) for mark in marks)
            events += self.kick(peer, f"other peers reported its updates as outliers in rounds {rounds}", marks)
        return events

    def _roll_back(self, settled: FinishedRound, records: Mapping[str, Progress], reason: str) -> list[dict[str, Any]]:
        goal = self._goal(settled.place)
        if goal is None:
            return []
        to_round, hash_ = goal
        self._tries[to_round] += 1
        if self._tries[to_round] > TRIES:
            self.stop()
            again = (
                f"{reason} after {TRIES} rollbacks to this round; the swarm stops. Check the data and the learning rate"
            )
            return [{"event": "rollback", "to_round": to_round, "reason": again}]
        events = [event for peer in _suspects(self._recent, records) for event in self.kick(peer, reason)]
        self._rollback = Rollback(number=settled.place.rollbacks + 1, to_round=to_round, hash=hash_)
        # The culprit may still be in the swarm: from now on no single update can dominate the average.
        self._aggregation, self.is_new = "robust", True
        self._watch.rolled_back()
        self._recent.clear()
        self._evidence.forget()
        return [*events, {"event": "rollback", "to_round": to_round, "reason": reason}]

    def _goal(self, place: Place) -> tuple[int, str] | None:
        """Return round and hash of the last good round if peers still have it, else of the last good checkpoint."""
        good = self._watch.good_round
        if good is None:
            return None
        known = {at.round: found for at, found in self._hashes.items() if at.round <= good}
        if good in known and place.round - good <= REACH:
            return good, known[good]
        saved = [(round_, found) for round_, found in self._saved.items() if round_ <= good]
        return max(saved, default=None)


def _suspects(rounds: Iterable[tuple[Progress, ...]], records: Mapping[str, Progress]) -> list[str]:
    """Return the peers named in most of the last rounds' complaints. Records without a complaint do not count."""
    complaints = tuple(record for round_ in rounds for record in round_ if set(record.odd) - {record.p2p})
    return _minority([p2p for p2p, count in _votes(complaints).items() if 2 * count > len(complaints)], records)


def _votes(reports: tuple[Progress, ...]) -> Counter[str]:
    return Counter(p2p for record in reports for p2p in set(record.odd) - {record.p2p})


def _minority(p2p_ids: list[str], records: Mapping[str, Progress]) -> list[str]:
    """Return the peers with these p2p ids; none if they are half of the swarm or more."""
    found = sorted(record.peer for record in records.values() if record.p2p in p2p_ids)
    return found if 2 * len(found) < len(records) else []
