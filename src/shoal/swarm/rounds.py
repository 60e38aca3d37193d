"""Low-communication training: steps alone, and once a round one exchange of what was learnt.

A round ends when the swarm, not this peer, has seen its samples. Every peer then makes the same outer step with the same
average, so that all hold the same model again; whoever does not (it died, it was late, the exchange broke off) takes over
what the others have agreed on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeVar

from shoal.core.errors import Refused, Unreachable
from shoal.swarm import sources
from shoal.swarm.agreement import Agreed, Place, agreed, count_beside, is_about_to_follow, is_astray, vouched
from shoal.swarm.averaging import Exchange, served
from shoal.swarm.links import Links
from shoal.swarm.outer import Outer
from shoal.swarm.peer import addresses
from shoal.swarm.records import Order, Progress
from shoal.swarm.schedule import Schedule
from shoal.swarm.settings import Settings, round_samples
from shoal.swarm.tally import Tally
from shoal.swarm.wire import State, state_hash

torch: Any = import_module("torch")
logger = logging.getLogger(__name__)

_ATTEMPTS = 2
_LOOKS, _LAG_S = 4, 0.25
_RECENT = 4
"""States others may hear of from us: the present one and a few before it."""
_JOIN_S = 90.0
"""Longer than the records of peers live that are gone."""
T = TypeVar("T")


class Rounds:
    """One peer's part in a swarm. Starts processes; `leave` ends them."""

    def __init__(self, settings: Settings, model: Any, scheduler: Any = None, *, optimizer: Any = None):
        self._settings, self._optimizer = settings, optimizer
        self._outer = Outer(
            model, lr=settings.outer_lr, momentum=settings.outer_momentum, feeds_back=settings.compression == "int8"
        )
        if settings.fingerprint not in (None, self._outer.fingerprint):
            raise Refused(
                "This script's model has other parameters than the swarm's.",
                hint="get the swarm's own code again: shoal swarm join LINK",
            )
        self._schedule = Schedule(scheduler) if scheduler is not None else None
        self._place, self.samples = Place(0, 0), 0
        self._left = False
        self._ended_at = float("-inf")
        """When we last ended a round."""
        self._due_at: float | None = None
        """Since when this round is over but for an exchange that those beside us did not come to."""
        self._seen: Mapping[str, Progress] | None = None
        self._heard: Order | None = None
        self.tally = Tally()
        self.stopped = False
        """Whether the owner has asked all peers to stop."""
        self._recent: dict[str, int] = {}
        self._shelf = sources.Shelf(settings.state_dir)
        self._state = self._take_state()
        self._links = links = Links(
            settings, self._outer.anchor.numel(), state=lambda: served(self._state), describe=self._describe
        )
        self._averager, self._tracker, self._watch = links.averager, links.tracker, links.watch
        try:
            self._join()
        except BaseException:
            links.close()
            raise
        self._watch.start()
        self._watch.tell()

    # what a script asks

    @property
    def round(self) -> int:
        return self._place.round

    @property
    def global_step(self) -> int:
        """Batches of `target_batch_size` the swarm has trained on, as far as it is known here."""
        known = min(self._tracker.global_progress.samples_accumulated, self._tracker.target_batch_size)
        return int((self.samples + max(known, self.tally.samples)) // self._settings.target_batch_size)

    @property
    def num_peers(self) -> int:
        """In the swarm, in whatever round, this one included, as of the last look."""
        return 1 + sum(record.state != "leaving" for record in self._seen_last())

    @property
    def address(self) -> list[str]:
        """Where other peers reach this one: their `initial_peers`."""
        return addresses(self._links.dht)

    def step(self, inner_step: Callable[[], T], samples: int) -> T | None:
        """One step of the inner optimizer on so many samples; ends the round if the swarm has seen enough of them."""
        if self._left:
            return inner_step()
        goal = self._other_state()
        if self._obey() or (goal is not None and self._catch_up(goal)):
            return None  # the gradients were those of another model
        result = inner_step()
        self.tally.add(samples)
        self._tracker.tell(self._place.epoch, self.tally.samples)
        self._follow_schedule()
        if self._tracker.global_epoch > self._place.epoch:
            ahead = self._agreed_by_others()
            if ahead is not None and ahead.place.epoch > self._place.epoch:
                self._catch_up(ahead)
        elif self._tracker.ready_to_update_epoch and self.tally.samples:
            self._end_round()
        return result

    def note(self, loss: float) -> None:
        """Of the last step; shown for the whole swarm."""
        self.tally.note(loss)

    def leave(self) -> None:
        """Tell the others and end all processes. What was learnt since the last round stays in this process's model."""
        if self._left:
            return
        try:
            self._linger()
        finally:
            self._left = True
            self._links.close()

    def _linger(self) -> None:
        """For those whose last exchange failed: we may be the only one they can get its outcome from."""
        deadline = self._ended_at + 2 * self._settings.matchmaking_s
        while not self._settings.client_mode and time.monotonic() < deadline:
            with suppress(Exception):  # of a network that is no more
                self._watch.look()
            if not any(is_about_to_follow(record, self._place, self._recent) for record in self._seen_last()):
                return
            time.sleep(_LAG_S)

    def state_dict(self) -> dict[str, Any]:
        """Of the last round's end, as a joining peer would get it."""
        state, rollbacks = self._state, self._place.rollbacks
        tensors = dict(zip(state.names, state.tensors, strict=True))
        return {"tensors": tensors, "round": state.round, "rollbacks": rollbacks, "samples": state.samples}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Taken over unless the swarm is already further."""
        place = Place(saved["rollbacks"], saved["round"])
        if place.epoch > self._place.epoch:
            self._adopt(saved["tensors"], place, saved["samples"])

    # a round

    def _end_round(self) -> None:
        began = time.monotonic()
        update = self._outer.update()
        if not torch.isfinite(update).all():
            logger.warning("shoal: this peer's parameters are not finite: back to the beginning of the round")
            self._outer.write()
            self._outer.residual.zero_()
            self.tally.drop()
            return
        with self._tracker.pause_updates():
            found = self._exchange(update)
            if not isinstance(found, Agreed):
                is_whole = found is not None and found.is_whole
                if is_whole or not self._should_wait():
                    self._finish_round(update, found, time.monotonic() - began)
                return
        self._catch_up(found)

    def _should_wait(self) -> bool:
        """Rather than go on alone, and soon be far from those who are in this round or have gone on without us.

        We train on meanwhile, for a while: they may come, or we hear of what they have agreed on.
        """
        now = time.monotonic()
        self._due_at = now if self._due_at is None else self._due_at
        others = [r for r in self._seen_last() if r.state != "leaving" and Place.of(r).epoch >= self._place.epoch]
        if others and now - self._due_at < 3 * self._settings.matchmaking_s:
            return True
        if others:
            logger.warning("shoal: round %d: went on alone, the others did not come", self._place.round)
        return False

    def _exchange(self, update: Any) -> Exchange | Agreed | None:
        """With all who are in this round; what the others have gone on to, if they have; None if there is nobody."""
        best: Exchange | None = None
        for _ in range(_ATTEMPTS):
            beside = self._beside(self._watch.look())
            if beside < 2 and best is None:
                return None
            found = self._averager.exchange(
                update,
                place=f"{self._place.epoch} {self._state.hash}",
                weight=self.tally.samples,
                about={"samples": self.tally.samples},
                expects=beside,
            )
            if found is not None and found.is_whole:
                return found
            best = found or best
            ahead = self._agreed_by_others()
            if ahead is not None and ahead.hash != self._state.hash and ahead.place.epoch >= self._place.epoch:
                return ahead
        return best

    def _finish_round(self, update: Any, found: Exchange | None, seconds: float) -> None:
        limit = self._tracker.target_batch_size
        claims = [told.get("samples") for told in found.gathered.values()] if found else [self.tally.samples]
        self.samples += sum(min(max(c, 0), 2 * limit) for c in claims if isinstance(c, int))
        self._outer.sent()
        self._outer.apply(found.average if found else update)
        self._place, self._due_at = Place(self._place.rollbacks, self._place.round + 1), None
        self._ended_at = time.monotonic()
        self._state = self._take_state()
        self.tally.close(found.receipt if found else None, seconds)
        self._name_odd()
        self._tracker.begin(self._place.epoch, round_samples(self.samples, self._settings))
        self._shelf.keep(self._state, self._place.rollbacks)
        self._follow_schedule()
        self._watch.tell()

    def _name_odd(self) -> None:
        names = {record.p2p: record.name or record.peer for record in self._seen_last()}
        for p2p in self.tally.receipt["odd"]:
            logger.warning(
                "shoal: round %d: what %s sent was not like the others'", self._place.round, names.get(p2p, p2p)
            )

    # keeping up

    def _other_state(self) -> Agreed | None:
        """What the others hold, if it is not what we hold. Only new records are looked at."""
        records = self._watch.records
        if records is self._seen:
            return None
        self._seen = records
        others, own = self._seen_last(), self._describe()
        goal = agreed([*others, own])
        if goal is None or goal.hash == own.state_hash:
            return None
        return goal if goal.place.epoch >= self._place.epoch or is_astray(own, goal, others) else None

    def _catch_up(self, goal: Agreed | None) -> bool:
        """Take over what the others have agreed on; asked again where they go on while we download."""
        silent: set[str] = set()
        for _ in range(_ATTEMPTS):
            if goal is None:
                return False
            for state in sources.from_peers(self._links.dht, self._settings.run_id, goal, self._seen_last(), silent):
                place = goal.place if state.hash == goal.hash else self._vouched(state.hash, silent)
                if place is not None and place.epoch >= goal.place.epoch:
                    self._take_over(state, place)
                    logger.info("shoal: took over round %d of the swarm", self._place.round)
                    return True
                logger.info("shoal: too few hold, by their own word, what was downloaded as round %d", state.round)
            goal = self._agreed_by_others(silent)
        return False

    def _agreed_by_others(self, silent: Container[str] = ()) -> Agreed | None:
        self._watch.look()
        return agreed(self._seen_last(silent), besides=1)

    def _vouched(self, state_hash: str, silent: Container[str]) -> Place | None:
        """Of a state newer than the records were when it was asked for: it takes them a moment to come."""
        for _ in range(_LOOKS):
            self._watch.look()
            if (place := vouched(state_hash, self._seen_last(silent), besides=1)) is not None:
                return place
            time.sleep(_LAG_S)
        return None

    def _seen_last(self, silent: Container[str] = ()) -> list[Progress]:
        """Of others; without those found `silent`, who may be dead."""
        own = self._links.peer
        return [r for r in self._watch.records.values() if r.peer != own and r.p2p not in silent]

    def _take_over(self, state: State, place: Place) -> None:
        self._adopt(dict(zip(state.names, state.tensors, strict=True)), place, state.samples)

    def _adopt(self, tensors: Mapping[str, Any], place: Place, samples: int) -> None:
        self._outer.load(tensors)
        self._place, self.samples, self._due_at = place, samples, None
        self._state = self._take_state()
        self.tally.forget()
        with self._tracker.pause_updates():
            self._tracker.begin(place.epoch, round_samples(samples, self._settings))
        if self._schedule is not None:
            self._schedule.rewind(self.global_step)
        self._watch.tell()

    def _join(self) -> None:
        """Begin with what the swarm has; with the server's or our own last state where nobody is there."""
        deadline = time.monotonic() + _JOIN_S
        while (goal := self._agreed_by_others()) is not None:
            if (goal.hash, goal.place) == (self._state.hash, self._place) or self._catch_up(goal):
                return  # all begin alike, or with what the others have
            time.sleep(1.0)
            if time.monotonic() > deadline:
                raise Unreachable(
                    "The swarm is training, but no peer gives its state.",
                    hint="try again later, or: shoal swarm doctor",
                )
        state = sources.from_server(self._settings)
        kept = (state, 0) if state is not None else self._shelf.newest()
        if kept is not None:
            self._take_over(kept[0], Place(kept[1], kept[0].round))

    def _obey(self) -> bool:
        """The owner's word, as of the last look; whether it has changed the model."""
        order = self._watch.order
        if order is None or order is self._heard:
            return False
        self._heard, self.stopped = order, order.stop
        self._averager.use_aggregation(order.aggregation or self._settings.aggregation)
        rollback = order.rollback
        if rollback is None or rollback.number <= self._place.rollbacks:
            return False
        state = self._shelf.of_round(rollback.to_round, rollback.hash)
        state = state or sources.from_server(self._settings, rollback.hash)
        if state is not None:
            logger.warning("shoal: the owner rolls back to round %d", rollback.to_round)
            self._take_over(state, Place(rollback.number, state.round))
            if self._optimizer is not None:
                self._optimizer.state.clear()  # its moments are those of what went wrong
        return state is not None

    # what others get to know

    def _take_state(self) -> State:
        tensors = self._outer.tensors()
        names = list(tensors)
        found = state_hash(names, list(tensors.values()))
        self._recent = dict([*self._recent.items(), (found, self._place.epoch)][-_RECENT:])
        return State(self._place.round, self.samples, self.tally.mean_loss, names, list(tensors.values()), found)

    def _beside(self, records: Mapping[str, Progress]) -> int:
        """Peers in the present round, this one included."""
        others = (record for record in records.values() if record.peer != self._links.peer)
        within_s, lag_s = self._settings.expiry_s, self._settings.matchmaking_s
        return 1 + count_beside(self._place, self._state.hash, self._recent, others, within_s=within_s, lag_s=lag_s)

    def _describe(self) -> Progress:
        return Progress(
            peer=self._links.peer,
            name=self._settings.peer_name,
            p2p=self._links.p2p,
            round=self._place.round,
            rollbacks=self._place.rollbacks,
            samples_per_s=float(self._tracker.performance_ema.samples_per_second),
            state_hash=self._state.hash,
            recent=self._recent,
            serves_state=not self._settings.client_mode,
            state="leaving" if self._left else "training",
            **self.tally.told(),
        )

    def _follow_schedule(self) -> None:
        if self._schedule is not None:
            self._schedule.follow(self.global_step)
